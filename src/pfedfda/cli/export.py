"""``pfedfda export``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from pfedfda.cli.parsing import Flag
from pfedfda.errors import InputError, printable

if TYPE_CHECKING:
    from pfedfda.experiment.exporting import ExportedModel


@dataclass(frozen=True)
class ExportCommand:
    """Write the models of a run's clients, for 'pfedfda predict' or any other program.

    Each is exactly the model that was evaluated after the last round, with its class names and all
    that turns a sample into its input. The folder of one model can be given in place of a run, to
    write it in another format.

    Parameters
    ----------
    run
        The folder of a run, or of a model.
    client
        Write the model of this client, by its name or number in clients.csv; may be repeated.
    all
        Write the models of all clients.
    shared
        Write the model that all clients have in common, where the method has one.
    source
        Write a model for a new client that holds these samples, as 'pfedfda personalize' does,
        which has more options.
    format
        folder (safetensors and JSON, for pfedfda predict), onnx (one file for ONNX Runtime;
        needs the extra export), or program (one .pt2 file that torch loads without this package).
    output
        The folder for the models; by default models in the run's folder, or beside a model.
    device
        Where networks run: cpu, cuda, mps.
    method
        The Python file of the run's method, if it came from one.
    model
        The run's own model, file.py:name, if it has one: it is a program, which is named again.
    backbone
        The run's own backbone, likewise.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    client: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    all: Flag = False
    shared: Flag = False
    source: str | None = None
    format: Literal["folder", "onnx", "program"] = "folder"
    output: Path | None = None
    device: str = "cpu"
    method: Path | None = None
    model: str | None = None
    backbone: str | None = None

    def execute(self) -> int:
        """Write the models, and print where they are."""
        from pfedfda.experiment.exporting import describe_exported

        is_model = (self.run / "model.json").exists()
        chosen = [bool(self.client), self.all, self.source is not None, self.shared]
        if is_model and any(chosen):
            raise InputError(f"{self.run} is one model: drop --client, --all, --shared, --source.")
        if not is_model and not any(chosen):
            raise InputError(
                "Which model? Give --client NAME, --all, --shared, or --source FILES for a new "
                "client."
            )
        if sum(chosen[:3]) > 1:
            raise InputError("Give one of --client, --all and --source.")
        self._allow()
        for exported in self._converted() if is_model else self._exported():
            print(printable(describe_exported(exported)))
        return 0

    def _allow(self) -> None:
        """Let the run name the programs that the user has named."""
        from pfedfda.methods.registry import load_method_file
        from pfedfda.models.factories import allow

        if self.method is not None:
            load_method_file(self.method)
        for spec in (self.model, self.backbone):
            if spec is not None:
                allow(spec)

    def _exported(self) -> list["ExportedModel"]:
        """Write models of a run."""
        from pfedfda.experiment.exporting import ExportedModel, convert_model, export_models
        from pfedfda.experiment.personal import personalize

        written = []
        if self.client or self.all or self.shared:
            written = export_models(
                self.run,
                "all" if self.all else self.client,
                shared=self.shared,
                format=self.format,
                output=self.output,
                device=self.device,
            )
        if self.source is not None:
            place = None if self.output is None else self.output / Path(self.source).stem
            new = personalize(self.run, self.source, output=place, device=self.device)
            name = new.folder.name
            one = ExportedModel(new.folder, name, new.accuracy, tested=new.held_out)
            if self.format != "folder":  # it is beside the folder
                one = convert_model(new.model, new.folder, self.format, new.samples)
            written.append(one)
        return written

    def _converted(self) -> list["ExportedModel"]:
        """Write a model that is in a folder in another format."""
        from pfedfda.experiment.exporting import convert_model
        from pfedfda.inference import load_model

        if self.format == "folder":
            raise InputError(
                f"{self.run} is a model folder already: give --format onnx or program."
            )
        model = load_model(self.run, self.model, self.backbone)
        parent = self.run.parent if self.output is None else self.output
        return [convert_model(model, parent / self.run.resolve().name, self.format)]


command = ExportCommand
