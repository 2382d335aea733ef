"""The command line: ``pfedfda run``, ``compare``, ``methods`` and ``datasets``."""

import contextlib
import dataclasses
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table

from pfedfda.data import FEDERATIONS, PARTITIONS, SOURCES, FederationConfig, prepare
from pfedfda.data.shift import frost_photos
from pfedfda.engine import EngineConfig
from pfedfda.errors import InputError, PfedfdaError, printable, unknown
from pfedfda.experiment.api import compare_config, run_config, same_settings
from pfedfda.experiment.check_method import check_method
from pfedfda.experiment.observers import choose_observer
from pfedfda.experiment.personal import personalize
from pfedfda.experiment.rounds import InterruptedRunError
from pfedfda.flower.project import federate
from pfedfda.methods import Task, all_methods, dry_run, expand_names, find_method
from pfedfda.methods.registry import load_method_file
from pfedfda.methods.traffic import parts
from pfedfda.models import ModelConfig
from pfedfda.report import write_report
from pfedfda.report.federation import clients_table, draw_figures, summary_table
from pfedfda.report.paper_table import build_paper_table
from pfedfda.runs import is_complete
from pfedfda.runs.comparison import (
    build_new_clients_table,
    build_table,
    plain_console,
)
from pfedfda.runs.config import (
    GROUPS,
    Config,
    change,
    checked_fields,
    make_config,
    named_federation,
    read_config,
)
from pfedfda.version import __version__

USAGE = """\
usage: pfedfda COMMAND [options]

Personalised federated learning on one machine.

commands:
  run          run one method on a federation
  compare      run several methods on one federation and print one table
  reproduce    run a table or figure of the paper, and print our numbers beside the paper's
  report       write a page with tables and figures about runs
  personalize  make a personal model for new images from a finished run
  data show    prepare a federation, print its sizes and draw what it holds
  methods      list the methods
  check-method check that a method of your own keeps the contract
  datasets     list the sources of images and the partitions
  federate     begin or check a federation over real sites, on Flower

examples:
  pfedfda run --method fedavg-ft --clients 50 --alpha 0.3 --rounds 20
  pfedfda compare --methods local fedavg fedavg-ft --source ~/photos --rounds 50
  pfedfda run --config runs/digits-fedavg/config.toml --seed 1
  pfedfda run --resume runs/digits-fedavg
  pfedfda reproduce table1 --columns cifar10-s@25 --methods fedavg-ft pfedfda --dry-run
  pfedfda report runs/digits-fedavg runs/digits-pfedfda

'pfedfda COMMAND --help' tells everything about a command.
"""

CONFIG_HELP = (
    "A configuration file, such as the config.toml of an earlier run; other options override it."
)
FEDERATION_HELP = (
    "One of the paper's federations, e.g. cifar10-s, with its settings (pfedfda datasets lists "
    "them); other options override it."
)
RESUME_HELP = (
    "The folder of a run that was stopped: go on from its last checkpoint, with its settings."
)
METHODS_HELP = "Methods by name; all stands for every method."
METHOD_HELP = "The method by name, or a Python file that registers one."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 for bad input, 1 for a run that stopped."""
    if arguments is None:
        arguments = sys.argv[1:]
        # A kill by SIGTERM ends a run the way Ctrl-C does: with its results written.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _dispatch(list(arguments))
    except InputError as error:
        _complain(error)
        return 2
    except InterruptedRunError as error:
        _complain(error)
        return 130
    except PfedfdaError as error:
        _complain(error)
        return 1
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        _complain(f"A file or folder cannot be used ({error}).")
        return 1


def _complain(error: object) -> None:
    """Print a sentence to the error stream, on one line."""
    text = " ".join(str(error).splitlines())
    print(printable(f"pfedfda: {text}"), file=sys.stderr)


def _dispatch(words: list[str]) -> int:
    commands: dict[str, Callable[[list[str]], int]] = {
        "run": _run,
        "compare": _compare,
        "reproduce": _reproduce,
        "report": _report,
        "personalize": _personalize,
        "data": _data,
        "methods": _methods,
        "check-method": _check_method,
        "datasets": _datasets,
        "federate": federate,
    }
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0
    if words[0] in ("-V", "--version"):
        print(f"pfedfda {__version__}")
        return 0
    if words[0] not in commands:
        raise unknown("command", words[0], commands)
    return commands[words[0]](words[1:])


def _run(words: list[str]) -> int:
    """Run one method on a federation."""
    config, quiet, folder = _parse("run", words)
    with choose_observer(quiet) as observer:
        result = run_config(config, observer, folder)
    if not quiet:
        _print_tables([result.summary])
        print(printable(f"report: {write_report([result.folder], result.folder)}"))
    print(printable(result.folder))
    return 0


def _print_tables(summaries: list[dict[str, Any]]) -> None:
    console = plain_console()
    console.print(build_table(summaries))
    new_clients = build_new_clients_table(summaries)
    if new_clients is not None:
        console.print(new_clients)


def _compare(words: list[str]) -> int:
    """Run several methods on one federation and print one table."""
    config, quiet, folder = _parse("compare", words)
    with choose_observer(quiet) as observer:
        comparison = compare_config(config, observer, folder)
    if not quiet and comparison.results:
        _print_tables([result.summary for result in comparison.results])
        print(printable(f"report: {write_report([comparison.folder], comparison.folder)}"))
    print(printable(comparison.folder))
    if comparison.stopped:
        total = len(config.methods)
        _complain(f"{len(comparison.stopped)} of {total} methods diverged.")
    return 1 if comparison.stopped else 0


@dataclasses.dataclass(frozen=True)
class ReproduceOptions:
    """Run what a table or figure of the paper needs, and print our numbers beside the paper's.

    Runs that are complete are not run again; a suite that was interrupted goes on where it was when
    the same command is given again. Without a suite, all of them are listed.

    Parameters
    ----------
    suite
        table1 to table9, figure2 to figure4, or theorem1.
    methods
        The rows: methods by name (presets such as pfedfda-released too), or what else the rows of
        the table are; by default all of the paper's.
    columns
        The columns by name, e.g. cifar10-s@25 for CIFAR10-S with 25 % of the training samples; by
        default all of the paper's.
    rounds
        The number of rounds, if not the paper's.
    seeds
        A run for each of these seeds; the table has their mean.
    dry_run
        Only say what would run and about how long it would take, by timing a round of each.
    data_dir
        The folder with local copies of datasets of the Hub; by default what PFEDFDA_DATA names.
    output
        The folder for runs.
    results
        The folder for the small files that the tables are made from; by default results in the
        output folder.
    quiet
        Print nothing but the table and the paths.
    engine
        What runs where.
    """

    suite: tyro.conf.Positional[str | None] = None
    methods: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rounds: int | None = None
    seeds: tuple[int, ...] = (0,)
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    data_dir: Path | None = None
    output: Path = Path("runs")
    results: Path | None = None
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    engine: Annotated[EngineConfig, tyro.conf.OmitArgPrefixes] = dataclasses.field(
        default_factory=EngineConfig
    )


def _reproduce(words: list[str]) -> int:
    """Run a table or figure of the paper, and print our numbers beside the paper's."""
    from pfedfda.paper import computed
    from pfedfda.paper.reproduce import estimate, plan, reproduce
    from pfedfda.paper.suites import COMPUTED, SUITES, find_suite

    options = _parse_quietly(ReproduceOptions, "pfedfda reproduce", words)
    if options.suite is None:
        known = {suite.key: suite.title for suite in SUITES.values()} | COMPUTED
        _print_list("suite", "what it shows", dict(sorted(known.items())))
        return 0
    if options.suite in COMPUTED:
        if options.methods or options.columns:
            raise InputError(f"{options.suite} is made whole: it has no choice of rows or columns.")
        return computed.show(options.suite, options.data_dir, options.output)
    if not options.seeds:
        raise InputError("There is no seed; name at least one.")
    suite = find_suite(options.suite)
    rows, columns = suite.choose_rows(options.methods), suite.choose_columns(options.columns)
    with choose_observer(options.quiet) as observer:
        jobs = plan(
            suite, rows, columns, options.rounds, options.seeds, options.engine,
            options.data_dir, options.output, observer,
        )  # fmt: skip
        if options.dry_run:
            waiting = [job for job in jobs if not is_complete(job.folder)]
            seconds = {}
            for number, job in enumerate(waiting, start=1):
                observer.say(f"Timing a round, {number} of {len(waiting)}: {job.folder.name}")
                seconds[job.folder.name] = estimate(job, observer)
        else:
            results = options.results or options.output / "results"
            done = reproduce(suite, jobs, rows, columns, options.output, results, observer)
    if options.dry_run:
        times = {name: f"about {_duration(value)}" for name, value in seconds.items()}
        complete = {j.folder.name: "complete" for j in jobs if j.folder.name not in times}
        _print_list("run", "how long", complete | times)
        print(f"{len(times)} of {len(jobs)} runs to make, about {_duration(sum(seconds.values()))}")
        return 0
    _print_wide(build_paper_table(done.table))
    for note in done.table.notes:
        print(printable(f"- {note}"))
    print(printable(f"report: {done.page}"))
    if done.stopped:
        _complain(f"{len(done.stopped)} of {len(jobs)} runs stopped early.")
    return 1 if done.stopped else 0


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


@dataclasses.dataclass(frozen=True)
class ReportOptions:
    """Write a page with tables and figures about runs, to be opened in a browser.

    Parameters
    ----------
    runs
        Folders of runs or comparisons.
    output
        The folder for report.html and figures; by default that of the run if there is one, else
        report.
    title
        The heading of the page.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    output: Path | None = None
    title: str | None = None


def _report(words: list[str]) -> int:
    """Write a page with tables and figures about runs."""
    options = _parse_quietly(ReportOptions, "pfedfda report", words)
    if not options.runs:
        raise InputError("There is no run to report on; name the folder of one.")
    alone = options.runs[0] if len(options.runs) == 1 else Path("report")
    page = write_report(options.runs, options.output or alone, title=options.title)
    print(printable(page))
    return 0


@dataclasses.dataclass(frozen=True)
class PersonalizeOptions:
    """Make a personal model for a client that was not there when the federation was trained.

    Parameters
    ----------
    run
        The folder of a finished run.
    source
        The client's labelled images: a folder of class/image.png, or an .npz file.
    test_share
        The share of the images that is held out to measure the accuracy; 0 uses all for fitting.
    output
        Where to write the model; by default a new folder in the run's folder personal.
    seed
        Determines which images are held out.
    device
        Where the network runs: cpu, cuda, mps.
    method
        The Python file of the run's method, if it came from one.
    """

    run: tyro.conf.Positional[Path]
    source: str
    test_share: float = 0.2
    output: Path | None = None
    seed: int = 0
    device: str = "cpu"
    method: Path | None = None


def _personalize(words: list[str]) -> int:
    """Make a personal model for new images from a finished run."""
    options = _parse_quietly(PersonalizeOptions, "pfedfda personalize", words)
    if options.method is not None:
        load_method_file(options.method)
    settings = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    del settings["method"]
    result = personalize(**settings)
    told = "".join(f", {name} {value:.3f}" for name, value in result.metrics.items())
    text = (
        f"fitted to {result.fitted} images in {1000 * result.seconds['fit']:.1f} ms after "
        f"{1000 * result.seconds['network']:.0f} ms in the network{told}"
    )
    print(printable(text))
    if result.accuracy is not None:
        print(f"accuracy on {result.held_out} held-out images: {result.accuracy:.3f}")
    if result.shared_accuracy is not None:
        print(f"accuracy of the model that all clients share: {result.shared_accuracy:.3f}")
    print(printable(result.folder))
    return 0


@dataclasses.dataclass(frozen=True)
class ShowOptions:
    """Prepare a federation, print its sizes, and draw what its clients hold.

    Parameters
    ----------
    name
        One of the paper's federations, e.g. cifar10-s; without it the options say what to show.
    figures
        The folder for the figures; by default figures/NAME.
    federation
        The federation; these options override those of the name.
    """

    name: tyro.conf.Positional[str | None] = None
    figures: Path | None = None
    federation: Annotated[FederationConfig, tyro.conf.OmitArgPrefixes] = dataclasses.field(
        default_factory=FederationConfig
    )


def _data(words: list[str]) -> int:
    """Show a federation."""
    if not words or words[0] in ("-h", "--help"):
        print("usage: pfedfda data show [NAME] [options]\n\n'pfedfda data show --help' tells more.")
        return 0
    if words[0] != "show":
        raise unknown("command", f"data {words[0]}", ["data show"])
    name = words[1] if len(words) > 1 and not words[1].startswith("-") else None
    base = make_config({}, name).federation
    default = ShowOptions(name, None, base)
    options = _parse_quietly(ShowOptions, "pfedfda data show", words[1:], default=default)
    with choose_observer(quiet=False) as observer:
        federation = prepare(options.federation, progress=observer.preparing)
    plain_console().print(summary_table(federation))
    if (clients := clients_table(federation)) is not None:
        plain_console().print(clients)
    label = name or Path(options.federation.source).stem
    folder = options.figures or Path("figures") / label
    photos = frost_photos(options.federation.data_dir)
    for path in draw_figures(federation, folder, photos):
        print(printable(path))
    return 0


def _methods(words: list[str]) -> int:
    """List the methods."""
    _refuse_arguments("methods", words, "Lists the methods and their hyper-parameters.")
    table = Table()
    for heading in ("method", "what it does", "hyper-parameters", "paper"):
        table.add_column(heading, overflow="fold")
    task = Task(ModelConfig(), (28, 28, 1), num_classes=10, num_clients=2)
    for name, method in all_methods().items():
        summary = (method.__doc__ or "").strip().split("\n")[0]
        fields = [f"{_flag(f.name)} {f.default}" for f in dataclasses.fields(method)]
        sent = parts(dry_run(method(), task, method().init(task)).up)
        summary += f"\nSends {', '.join(sent) or 'nothing'}."
        table.add_row(name, summary, "\n".join(fields), method.paper)
    plain_console().print(table)
    return 0


@dataclasses.dataclass(frozen=True)
class CheckMethodOptions:
    """Check that a method keeps the contract, one line for each clause; takes about ten seconds.

    Parameters
    ----------
    method
        A Python file that registers a method, or the name of one.
    """

    method: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]


def _check_method(words: list[str]) -> int:
    """Check that a method keeps the contract."""
    options = _parse_quietly(CheckMethodOptions, "pfedfda check-method", words)
    failed = 0
    for finding in check_method(find_method(options.method)()):
        print(printable(finding), flush=True)
        failed += finding.violation is not None
    return 1 if failed else 0


def _datasets(words: list[str]) -> int:
    """List the sources of images and the partitions."""
    _refuse_arguments("datasets", words, "Lists the sources of images and the partitions.")
    federations = {name: text for name, (text, _) in FEDERATIONS.items()}
    for option, what, rows in (
        ("--federation", "the paper's federations", federations),
        ("--source", "where the images come from", SOURCES),
        ("--partition", "who gets what", PARTITIONS),
    ):
        _print_list("name", what, rows, option)
    return 0


def _print_list(name: str, what: str, rows: Mapping[str, str], title: str | None = None) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column(name, no_wrap=True)
    table.add_column(what, overflow="fold")
    for key, text in rows.items():
        table.add_row(printable(key), printable(text))
    plain_console().print(table)


def _print_wide(table: Table) -> None:
    """Print a table in full; one that is wider than the terminal is wrapped by the terminal."""
    console = plain_console()
    console.print(table, width=max(console.width, console.measure(table).maximum), crop=False)


def _refuse_arguments(command: str, words: list[str], about: str) -> None:
    if words and words[0] in ("-h", "--help"):
        print(f"usage: pfedfda {command}\n\n{about}")
        raise SystemExit(0)
    if words:
        raise InputError(f"'pfedfda {command}' takes no arguments, but got {words[0]!r}.")


def _parse(command: str, words: list[str]) -> tuple[Config, bool, Path | None]:
    """Turn the words behind ``run`` or ``compare`` into a configuration.

    Also tells whether to be quiet, and the folder of a run to go on with.

    The method decides which hyper-parameters there are, and a configuration file decides the
    defaults, so these two are looked for first; tyro then parses everything.
    """
    base = Config({})
    plural = command == "compare"
    flag = "--methods" if plural else "--method"
    asked = _value_of(flag, words)
    if not asked and flag in words:
        raise InputError(f"{flag} names no method; 'pfedfda methods' lists them.")
    # A file of settings may name a method's file only after the user has.
    files = {name: find_method(name) for name in asked if name.endswith(".py")}
    if path := _value_of("--config", words):
        base = read_config(Path(path[-1]))
    resumed = Path(resume[-1]) if (resume := _value_of("--resume", words)) else None
    if resumed is not None:
        base = _resumed_config(command, resumed)
    named = _value_of("--federation", words)
    if named:
        base = change(base, named_federation(named[-1]))
    if resumed is not None:
        there = {method.name for method in base.methods.values()}
        if {(files.get(name) or find_method(name)).name for name in expand_names(asked)} <= there:
            asked = []  # a method's file was named so that it is loaded
    if not plural and not asked and len(base.methods) > 1:
        raise InputError(
            f"These settings have {len(base.methods)} methods: choose one with --method, or give "
            f"the file to 'pfedfda compare'."
        )
    asked = asked or list(base.methods) or (["all"] if plural else ["fedavg"])
    names = expand_names(asked) if plural else asked[-1:]
    defaults = {name: base.methods.get(name) or find_method(name)() for name in names}

    def option(kind: Any, text: str) -> Any:
        return Annotated[kind, tyro.conf.arg(help=text)]

    fields: list[tuple[str, Any, Any]] = [
        ("config", option(Path | None, CONFIG_HELP), None),
        ("resume", option(Path | None, RESUME_HELP), None),
    ]
    if plural:
        fields.append(("methods", option(tuple[str, ...], METHODS_HELP), tuple(names)))
    else:
        fields.append(("method", option(str, METHOD_HELP), names[0]))
    fields.append(("federation_name", _renamed(str | None, "federation", FEDERATION_HELP), None))
    quiet = Annotated[bool, tyro.conf.FlagCreatePairsOff]
    fields.append(("quiet", option(quiet, "Print nothing but the path of the results."), False))
    for group, kind in GROUPS.items():
        fields.append((group, Annotated[kind, tyro.conf.OmitArgPrefixes], getattr(base, group)))
    for name, method in defaults.items():
        if dataclasses.fields(method):
            kind = type(method)
            prefixed: Any = Annotated[kind, tyro.conf.arg(name=method.name)]
            fields.append((_attribute(name), prefixed, method))
    defaulted = [(name, kind, dataclasses.field(default=value)) for name, kind, value in fields]
    options = dataclasses.make_dataclass("Options", defaulted, frozen=True)
    parsed = _parse_quietly(options, f"pfedfda {command}", words, _about(command))
    methods = {name: getattr(parsed, _attribute(name), m) for name, m in defaults.items()}
    groups = {group: getattr(parsed, group) for group in GROUPS}
    for name, section in {**groups, **methods}.items():
        # What a file of settings would refuse, such as inf, is refused here too: the run could not
        # be taken up from its own file.
        values = {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}
        checked_fields(type(section), values, name)
    config = Config(methods, **groups)
    if resumed is not None and not same_settings(config, base):
        raise InputError(
            f"A run that goes on keeps its settings; start a new one with --config "
            f"{resumed / 'config.toml'} to change them."
        )
    return config, parsed.quiet, resumed


def _resumed_config(command: str, folder: Path) -> Config:
    """Return the configuration of a run that was stopped."""
    if not (folder / "config.toml").is_file():
        raise InputError(f"There is no run in {folder} to go on with.")
    kind = "run" if (folder / "checkpoint").is_dir() else "compare"
    if kind == "compare" and (folder / "metrics.jsonl").exists():
        raise InputError(f"The run in {folder} has lost its checkpoint and cannot go on.")
    if kind != command:
        raise InputError(f"{folder} comes from the other command: pfedfda {kind} --resume {folder}")
    return read_config(folder / "config.toml")


def _renamed(kind: Any, name: str, text: str) -> Any:
    """Return the type of an option whose name is not that of its field."""
    return Annotated[kind, tyro.conf.arg(name=name, help=text)]


def _about(command: str) -> str:
    if command == "run":
        return (
            "Run one method on a federation and write everything about it to a folder. Without "
            "options it runs FedAvg on a federation of handwritten digits."
        )
    return (
        "Run several methods on one federation and compare them in one table. Without options it "
        "runs every method on a federation of handwritten digits."
    )


def _parse_quietly(
    options: type[Any],
    program: str,
    words: list[str],
    about: str | None = None,
    default: Any = tyro.MISSING,
) -> Any:
    """Parse with tyro, and turn its framed error messages into one sentence."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            if default is tyro.MISSING:
                return tyro.cli(options, prog=program, args=words, description=about)
            return tyro.cli(options, prog=program, args=words, description=about, default=default)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise InputError(_sentence(errors.getvalue())) from None


def _sentence(text: str) -> str:
    """Return the essence of one of tyro's error messages."""
    # On a terminal of ASCII only, the frame is lines of dashes below the title and after each part.
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    framed = [match[1] for line in lines if (match := re.match(r"│ (.*?) *│$", line))]
    body = "\n".join("" if set(line) <= set(" ─-") else line for line in framed or lines[2:])
    first = " ".join(body.strip().split("\n\n")[0].split())
    if match := re.match(r"Unrecognized options: ([^,\s]+)", first):
        near = re.search(r"Perhaps you meant:\s+(--[\w.-]+)", body)
        hint = f" Did you mean {near[1]}?" if near else ""
        return f"Unknown option {match[1]!r}; --help lists what there is.{hint}"
    if match := re.match(r"Error parsing (\S+): (.*)", first):
        told = _of_wrong_type(match[2])
        return f"{match[1]}: {told}" if match[1].startswith("--") else told
    return first


def _of_wrong_type(text: str) -> str:
    """Return the complaint about a value of the wrong type in plain words."""
    for pattern, kind in (
        (r"invalid literal for int\(\) with base 10: (.*)", "a whole number"),
        (r"could not convert string to float: (.*)", "a number"),
        (r"no type matching \S*INT could be instantiated from \[(.*)\]\.", "a whole number"),
    ):
        if match := re.fullmatch(pattern, text):
            return f"{match[1]} is not {kind}."
    return text


def _value_of(flag: str, words: Sequence[str]) -> list[str]:
    """Return the words behind a flag up to the next one, as typed."""
    values: list[str] = []
    for position, word in enumerate(words):
        if word.startswith(flag + "="):
            values.append(word.removeprefix(flag + "="))
        if word == flag:
            for value in words[position + 1 :]:
                if value.startswith("--") or value == "-h":
                    break
                values.append(value)
    return values


def _attribute(name: str) -> str:
    """Return the attribute that holds a method's hyper-parameters in the options."""
    return "method_" + re.sub(r"\W", "_", name)


def _flag(name: str) -> str:
    return name.replace("_", "-")
