"""The sections of the page: what each shows, and how to read it."""

from collections.abc import Sequence
from dataclasses import dataclass

from pfedfda.report import charts, predictions, tables
from pfedfda.report.charts import Bars, Chart
from pfedfda.report.groups import Entry, Group
from pfedfda.report.paper_table import PaperTable
from pfedfda.report.ranks import Ranks
from pfedfda.report.tables import Table
from pfedfda.runs.mistakes import PicturedMistake
from pfedfda.runs.quality import BINS
from pfedfda.runs.seed_table import SeedTable, p_text

FEW_MISTAKES = 12  # of each method where there are several


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Parameters
    ----------
    heading
        Its heading.
    text
        A sentence or two on how to read it.
    figure
        A chart, or several to choose from with switches.
    tables
        Tables, each with the entry that it is about, if it is about one.
    details
        Tables that are folded away, with what to press for them.
    notes
        Sentences in a list at the end, with its heading.
    sheets
        Mistakes with their images, each with the entry that made them.
    """

    heading: str
    text: str = ""
    figure: "Figure | None" = None
    tables: Sequence[tuple[Entry | None, Table]] = ()
    details: Sequence[tuple[str, Table]] = ()
    notes: tuple[str, Sequence[str]] | None = None
    sheets: Sequence[tuple[Entry, Sequence[PicturedMistake]]] = ()


@dataclass(frozen=True)
class Figure:
    """Charts to choose from.

    Parameters
    ----------
    key
        An identifier that no other figure of the page has.
    views
        The charts or bars; with two switches, those of the second for each choice of the first.
    switches
        For each switch its name and its choices; the first is chosen at the beginning.
    """

    key: str
    views: Sequence[Chart | Bars | Ranks]
    switches: Sequence[tuple[str, Sequence[str]]] = ()

    def choice(self, place: int) -> tuple[int, int]:
        """Return which choices of the two switches show a view."""
        second = len(self.switches[1][1]) if len(self.switches) > 1 else 1
        return divmod(place, second)


def suite_section(suite: PaperTable) -> Section:
    """Return the section with the paper's numbers."""
    return Section(
        "The paper’s numbers and ours",
        "As the paper reports them, as they came out here, and ours less the paper’s.",
        tables=[(None, tables.paper(suite))],
        notes=("What differs from the paper’s setting", suite.notes) if suite.notes else None,
    )


def ranks_section(ranks: Ranks) -> Section:
    """Return the section that compares methods over federations."""
    text = (
        f"Mean ranks by mean accuracy over {ranks.federations} federations; 1 is the best. Methods "
        f"under one black bar differ by less than the critical difference (Nemenyi, 0.05): their "
        f"order may be chance. That all methods are equal has p {p_text(ranks.p)} (Friedman)."
    )
    return Section("Ranks over federations", text, Figure("ranks", [ranks]))


def group_sections(group: Group, key: str) -> list[Section]:
    """Return the sections about a federation; `key` begins the identifiers of their figures."""
    entries = group.entries
    sections = [_comparison_section(entries)]
    if any(entry.first.privacy for entry in entries):
        sections.append(_privacy_section(entries))
    if group.statistics is not None:
        sections.append(_seeds_section(group.statistics, entries))
    evaluated = [entry for entry in entries if entry.rounds]
    if evaluated:
        sections.append(_rounds_section(evaluated, key))
    if any(entry.clients for entry in entries):
        sections.append(_clients_section(entries, key))
    sections += _prediction_sections(entries, key)
    sections += _beta_sections(entries, key)
    if any(entry.new_clients for entry in entries):
        text = (
            "Clients that never took part in training, on their own images and with these images "
            "corrupted: mean accuracy ± standard deviation over clients."
        )
        table = tables.new_clients(entries)
        sections.append(Section("New clients", text, tables=[(None, table)]))
    if group.counts is not None:
        largest = max(max(row) for row in group.counts.counts)
        text = (
            "Training samples by client and class. The area of a circle is their number; the "
            f"largest stands for {largest:,}."
        )
        figure = Figure(f"{key}-classes", [charts.bubbles(group.counts)])
        sections.append(Section("Who holds what", text, figure))
    text = (
        "Training and evaluation on the clock; inside the clients, the time of all clients is "
        "summed, whichever worker they ran on."
    )
    bars = [charts.wall_time(entries), charts.client_time(entries)]
    switch = ("Time", ["on the clock", "inside the clients, summed"])
    sections.append(Section("Time by component", text, Figure(f"{key}-time", bars, [switch])))
    if evaluated:
        sections.append(_bytes_section(evaluated, key))
    return sections


def _comparison_section(entries: Sequence[Entry]) -> Section:
    judged_on = entries[0].first.judged_on
    text = (
        f"{judged_on.capitalize()} accuracy after the last evaluation. The weighted mean counts "
        f"every {judged_on} sample the same; the worst tenth is the mean over the clients with the "
        f"lowest accuracy."
    )
    if predictions.with_predictions(entries):
        text += (
            " Balanced accuracy is the mean recall over the classes that a client’s test set "
            "holds, again as a mean over clients; NLL is the negative log-likelihood per sample; "
            "ECE is the calibration error below."
        )
    details = []
    if any(entry.seeds > 1 for entry in entries):
        text += " All numbers of a method are means over its seeds."
        details.append(("Every run", tables.every_run(entries)))
    heading = "Comparison" if len(entries) > 1 else "Result"
    return Section(heading, text, tables=[(None, tables.comparison(entries))], details=details)


def _privacy_section(entries: Sequence[Entry]) -> Section:
    text = (
        "The promise is to a client with all its samples: with or without it, any result of the "
        "server's has nearly the same probability, up to the factor exp(ε) and but for δ. "
        "Contributions are shortened to the clip, and noise on their sum has at least the standard "
        "deviation of the multiplier times the clip. Personal models, and the accuracies on this "
        "page, are not covered."
    )
    if any(entry.seeds > 1 for entry in entries):
        text += " The run of each seed spends a budget of its own."
    return Section("Differential privacy", text, tables=[(None, tables.privacy(entries))])


def _seeds_section(table: SeedTable, entries: Sequence[Entry]) -> Section:
    seeds = ", ".join(map(str, table.seeds))
    where = "partitions of these samples" if table.own_partitions else "this federation"
    text = (
        f"Means over seeds {seeds}; a seed draws {table.varies}. The interval of a mean is about "
        f"other seeds on {where} (t distribution)."
    )
    details = []
    if len(table.rows) > 1:
        text += (
            " A difference is paired by seed and client, and its interval is about other seeds and "
            "other clients like these; p is corrected for the number of pairs after Holm, and up "
            "to 0.05 a difference is beyond chance."
        )
        details.append(("All pairs", tables.all_pairs(table)))
    return Section("Over seeds", text, tables=[(None, tables.over_seeds(table, entries))],
                   details=details)  # fmt: skip


def _rounds_section(entries: Sequence[Entry], key: str) -> Section:
    judged_on = entries[0].first.judged_on.capitalize()
    text = f"{judged_on} accuracy of all clients after each evaluated round."
    if any(entry.seeds > 1 for entry in entries):
        text += " A line is the mean over seeds; the shade reaches from the lowest to the highest."
    views = [
        charts.accuracy_by_round(entries, accuracy, by_time)
        for accuracy in charts.ACCURACY_CHOICES
        for by_time in (False, True)
    ]
    switches = [
        ("Accuracy", list(charts.ACCURACY_CHOICES)),
        ("Horizontal axis", ["by round", "by time"]),
    ]
    return Section("Accuracy by round", text, Figure(f"{key}-accuracy", views, switches))


def _clients_section(entries: Sequence[Entry], key: str) -> Section:
    chart = charts.accuracy_by_client(entries)
    text = ""
    if chart.shaded:
        text = "Each method sorts the clients for itself. " if len(entries) > 1 else ""
        text += "The shaded part is the tenth of the clients with the lowest accuracy."
    details = [("Every client", tables.clients(entries))]
    if len(entries) > 1 and any(
        "balanced_accuracy" in r.quality for e in entries for r in e.clients
    ):
        balanced = tables.clients(entries, "balanced_accuracy")
        details.append(("Balanced accuracy of every client", balanced))
    figure = Figure(f"{key}-clients", [chart])
    return Section("Accuracy by client", text, figure, details=details)


def _prediction_sections(entries: Sequence[Entry], key: str) -> list[Section]:
    """Return calibration, recall by class and mistakes, for the runs that have counted them."""
    known, sections = predictions.with_predictions(entries), []
    if known:
        text = (
            f"How often predictions of a given confidence are right, over the "
            f"{known[0].first.judged_on} samples of all clients, in {BINS} bins of equal width; "
            f"bins with less than a hundredth of the samples are not drawn. On the dashed line "
            f"confidence is what accuracy turns out to be; below it a model is too sure. The "
            f"expected calibration error (ECE) is the mean distance from it over all samples."
        )
        figure = Figure(f"{key}-reliability", [predictions.reliability(known)])
        sections.append(Section("Calibration", text, figure))
        tables_of = [(entry, predictions.confusion(entry)) for entry in known]
        details = [
            (f"Confusion of classes: {entry.label}", table) for entry, table in tables_of if table
        ]
        text = "The share of each class that is recognised, over all clients."
        if details:
            text += " The tables below have samples by true and by predicted class."
        shown: list[tuple[Entry | None, Table]] = []
        if len(details) == 1:  # there is room to see it at once
            shown, details = [(None, details[0][1])], []
        figure = Figure(f"{key}-recall", [predictions.recall_by_class(known)])
        sections.append(Section("Recall by class", text, figure, shown, details))
    sheets = [(entry, entry.mistakes) for entry in entries if entry.mistakes]
    if sheets:
        text = (
            f"{sheets[0][0].first.judged_on.capitalize()} images that a client’s model takes for "
            f"another class, the most confident first, at most three of a client. Some of their "
            f"labels may be wrong. The images are part of this page, wherever you send it."
        )
        most = FEW_MISTAKES if len(sheets) > 1 else None
        few = [(entry, found[:most]) for entry, found in sheets]
        sections.append(Section("Most confident mistakes", text, sheets=few))
    return sections


def _beta_sections(entries: Sequence[Entry], key: str) -> list[Section]:
    """Return what is known about β: by corruption where there are any, otherwise by client."""
    sections = []
    for column in charts.beta_columns(entries):
        name, chosen = charts.beta_name(column), charts.with_beta(entries, column)
        if charts.is_shifted(chosen):
            heats = [
                (entry, tables.heat(charts.beta_by_corruption(entry, column))) for entry in chosen
            ]
            text = "Mean over clients: 0 is the global estimate, 1 the client’s own."
            sections.append(Section(f"{name} by corruption and severity", text, tables=heats))
        else:
            text = "How far each client leans on its own estimate (1) or on the global one (0)"
            text += "." if charts.are_few(chosen) else ", by its number of training samples."
            figure = Figure(f"{key}-{column}", [charts.beta_by_client(chosen, column)])
            sections.append(Section(f"{name} by client", text, figure))
    return sections


def _bytes_section(entries: Sequence[Entry], key: str) -> Section:
    text = (
        "Content of all tensors that crossed between server and clients. An amount per round is "
        "the mean since the evaluation before; in the last round every client takes part."
    )
    views = [
        charts.bytes_by_round(entries, direction, total)
        for direction in ("up", "down")
        for total in (False, True)
    ]
    switches = [
        ("Direction", ["up, clients to server", "down, server to clients"]),
        ("Amount", ["per round", "so far"]),
    ]
    return Section("Bytes by round", text, Figure(f"{key}-bytes", views, switches))
