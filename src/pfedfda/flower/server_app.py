"""The ServerApp: gathers the sites and hands them to the round loop as an engine."""

from collections.abc import Sequence
from dataclasses import replace

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from pfedfda.aggregation import refuse_unfit
from pfedfda.errors import InputError, PfedfdaError, RunStoppedError
from pfedfda.experiment.observers import Observer, PlainObserver
from pfedfda.experiment.rounds import run_rounds
from pfedfda.files import refuse_links
from pfedfda.flower.app_settings import RunSettings, ServerConfig, read_run_config
from pfedfda.flower.engine import FlowerEngine
from pfedfda.flower.exchange import DESCRIBE_TIMEOUT, Sites
from pfedfda.flower.roster import SiteRoster, agree, read_roster
from pfedfda.machine import one_thread
from pfedfda.report import write_report
from pfedfda.runs import RunResult, is_complete, load_run, make_folder
from pfedfda.runs.choices import choose_settings
from pfedfda.runs.config import Config, read_config

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that the run configuration describes."""
    observer = PlainObserver("sites")
    try:
        result = serve(grid, read_run_config(context.run_config), observer)
    except PfedfdaError as error:
        observer.say(f"pfedfda: {error}")
        raise
    observer.say(f"The results are in {result.folder.resolve()}")
    try:
        observer.say(f"report: {write_report([result.folder], result.folder).resolve()}")
    except PfedfdaError as error:  # the results are there all the same
        observer.say(f"pfedfda: {error}")


def serve(grid: Grid, settings: RunSettings, observer: Observer, poll: float = 0.5) -> RunResult:
    """Run a federation to its last round; write the same files as a run on one machine.

    Parameters
    ----------
    grid
        The connection to the nodes.
    settings
        What to run.
    observer
        Is told about the progress.
    poll
        Seconds between two looks for answers.
    """
    config, server = settings.config, settings.server
    folder = server.resume
    asked = config.aggregation
    if asked.dp_epsilon is not None and not asked.secure_aggregation:
        # Sites know the seed of the run.
        config = replace(config, aggregation=replace(asked, dp_randomness="system"))
    if folder is not None:
        if is_complete(folder):
            observer.say(f"{folder} is complete already.")
            return load_run(folder)
        refuse_links(folder)
        config = read_config(folder / "config.toml")
    (method,) = config.methods.values()
    timeout = min(server.timeout, DESCRIBE_TIMEOUT)
    sites = Sites(grid, config, timeout, poll, observer.say)
    roster = _new_roster(sites, config, server) if folder is None else read_roster(folder)
    if folder is not None:
        _wait_for(sites, roster, server)
    observer.say(roster.describe())
    if folder is None:
        config, chosen = choose_settings(config, roster, roster.has_own_data)
        if chosen:
            observer.say(chosen)
    refuse_unfit(config, config.schedule.trained_clients(len(roster)))
    if config.aggregation.dp_epsilon is not None and config.aggregation.dp_randomness == "seed":
        observer.say("The noise comes from the seed, which all sites know: this is a trial.")
    task = config.task(roster.input_shape, len(roster.class_names), len(roster), roster.input_type)
    engine = FlowerEngine(sites, roster, task, config, server.timeout)
    if folder is None:
        folder = make_folder(config.output, f"federation-{method.name}")
        roster.write(folder)
    try:
        with one_thread():
            return run_rounds(method, config, engine, folder, observer)
    except RunStoppedError as error:
        raise type(error)(f"{error} To go on: --run-config 'resume=\"{folder}\"'") from error


def _new_roster(sites: Sites, config: Config, server: ServerConfig) -> SiteRoster:
    """Wait for enough sites; these are the clients of the run."""
    if not sites.gather(lambda names: len(names) >= server.min_nodes, server.wait):
        raise InputError(
            f"{len(sites.described)} of {server.min_nodes} sites were there after "
            f"{server.wait:.0f} s: start more SuperNodes, or lower min-nodes."
        )
    (method,) = config.methods.values()
    return agree(sites.described.values(), server.classes, method.name)


def _wait_for(sites: Sites, roster: SiteRoster, server: ServerConfig) -> None:
    """Wait for the sites of a run that goes on; a few may be missing."""
    needed = min(server.min_nodes, len(roster))

    def enough(names: Sequence[str]) -> bool:
        return len(set(roster.client_names) & set(names)) >= needed

    if not sites.gather(enough, server.wait):
        raise InputError(
            f"Fewer than {needed} sites of the run were there after {server.wait:.0f} s: start "
            f"their SuperNodes, or lower min-nodes."
        )
