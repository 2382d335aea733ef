"""A model as one file for programs that do not have this package: ONNX, or a program of torch.

The graph begins with samples as their user has them (images as bytes, numbers before they are
standardised) and ends with logits and probabilities. Both formats are compared with the model
itself on samples before the file is put in its place.
"""

import copy
import importlib.util
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pfedfda.data.features import FeatureMap
from pfedfda.errors import InputError
from pfedfda.files import json_text, replacing
from pfedfda.inference.classifier import PersonalClassifier
from pfedfda.methods import to_input
from pfedfda.models import Body
from pfedfda.models.factories import describe_error
from pfedfda.version import __version__

OPSET = 18
TOLERANCE = 1e-4
"""The largest difference of a probability from that of the model itself."""
INPUT, OUTPUTS = "inputs", ("logits", "probabilities")
LAYOUTS = {"uint8": "n height width channels", "float32": "n ...", "int64": "n ..."}
BYTES_LIMIT = 2**31  # of an ONNX file, which is one message of protocol buffers


@dataclass(frozen=True)
class Difference:
    """How far an exported file is from the model itself.

    Parameters
    ----------
    largest
        The largest difference of a probability.
    samples
        On how many samples.
    """

    largest: float
    samples: int


class StandaloneGraph(nn.Module):
    """Preprocessing, backbone and network in one module.

    Parameters
    ----------
    model
        The model, whose network is copied.
    """

    def __init__(self, model: PersonalClassifier) -> None:
        super().__init__()
        backbone = model.backbone
        if model.preprocessing.type == "text" or (backbone and backbone.outside):
            outside = backbone.outside if backbone and backbone.outside else "the step from texts"
            raise InputError(
                f"The backbone {model.preprocessing.backbone} cannot be exported to one file, "
                f"because {outside} is not part of its network: use --format folder."
            )
        self.prepare = None if backbone is None else backbone.prepare
        self.backbone = None if backbone is None else backbone.module
        self.map = None if model.preprocessing.map is None else _MapModule(model.preprocessing.map)
        self.network = copy.deepcopy(model.network)
        if isinstance(self.network.body, Body):
            self.network.body.precision = torch.float32
        self.requires_grad_(False).eval()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities of samples as their user has them."""
        x = inputs
        if self.backbone is not None and self.prepare is not None:
            prepared = self.prepare(x)
            x = self.backbone(**prepared) if isinstance(prepared, dict) else self.backbone(prepared)
            x = x.float()
        if self.map is not None:
            x = self.map(x)
        logits = self.network(to_input(x)).float()
        return logits, logits.softmax(dim=1)


class _MapModule(nn.Module):
    """A feature map as a module; it computes in double precision, as the map itself."""

    def __init__(self, mapping: FeatureMap) -> None:
        super().__init__()
        self.transform = mapping.transform
        tensors = {n: torch.from_numpy(np.array(a)).double() for n, a in mapping.arrays().items()}
        self.mean = nn.Buffer(tensors["mean"])
        self.scale = nn.Buffer(tensors["scale"])
        self.directions = nn.Buffer(tensors["directions"]) if "directions" in tensors else None

    def forward(self, features: Tensor) -> Tensor:
        values = features.double()
        if self.transform == "sqrt":
            values = values.sign() * values.abs().sqrt()
        values = values - self.mean
        if self.directions is not None:
            values = values @ self.directions
        return (values / self.scale).float()


def export_onnx(model: PersonalClassifier, path: Path, samples: NDArray[Any]) -> Difference:
    """Write a model as one ONNX file, with its class names and preprocessing in the metadata.

    Parameters
    ----------
    model
        The model.
    path
        The file.
    samples
        Samples of the model's `preprocessing`, on which the file must give what the model gives.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"ONNX files need the package {package}: pip install 'pfedfda[export]'."
            )
    import onnx
    import onnxruntime

    with _explaining(model, "ONNX"), _quiet():
        program = torch.onnx.export(
            _traced(model),
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        proto = program.model_proto
    _forget_places(proto)
    onnx.helper.set_model_props(proto, {n: json_text(v) for n, v in metadata(model).items()})
    if proto.ByteSize() >= BYTES_LIMIT:
        raise InputError(
            f"The model has {proto.ByteSize():,} bytes, too many for one ONNX file: use --format "
            f"program."
        )
    content = proto.SerializeToString(deterministic=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    with _explaining(model, "ONNX"):
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def probabilities(batch: NDArray[Any]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = session.run([OUTPUTS[1]], {INPUT: batch})[0]
        return found

    return _write(path, content, model, samples, probabilities)


def export_program(model: PersonalClassifier, path: Path, samples: NDArray[Any]) -> Difference:
    """Write a model as a program of torch (.pt2), which `torch.export.load` reads.

    The parameters are those of `export_onnx`. The class names and the preprocessing are the extra
    file ``pfedfda.json`` in it.
    """
    with _explaining(model, "a program of torch"), _quiet():
        program = _traced(model)
        file = io.BytesIO()
        about = json_text(metadata(model))
        torch.export.save(program, file, extra_files={"pfedfda.json": about})
        content = file.getvalue()
        loaded = torch.export.load(io.BytesIO(content)).module()

    def probabilities(batch: NDArray[Any]) -> NDArray[np.float32]:
        with torch.inference_mode():
            found: NDArray[np.float32] = loaded(torch.from_numpy(batch))[1].numpy()
        return found

    return _write(path, content, model, samples, probabilities)


def metadata(model: PersonalClassifier) -> dict[str, Any]:
    """Return what a file says of its model, beside the graph."""
    raw = model.preprocessing
    about: dict[str, Any] = {
        "class_names": list(model.class_names),
        "input_type": raw.type,
        "input_shape": list(raw.shape),
        "layout": LAYOUTS[raw.type],
        "columns": list(raw.columns),
        "pfedfda": __version__,
    }
    if raw.type == "uint8":
        about["crop"] = "centre, to the aspect of input_shape"
        about["resample"] = "bicubic"
    if raw.backbone is not None:
        about["backbone"] = raw.backbone_key
    return about


def _traced(model: PersonalClassifier) -> torch.export.ExportedProgram:
    """Return the graph, for any number of samples."""
    raw = model.preprocessing
    graph = StandaloneGraph(model)
    # The file keeps its example, so that must not be anybody's sample.
    example = torch.zeros((2, *raw.shape), dtype=getattr(torch, raw.type))
    batch = torch.export.Dim("batch")
    traced = torch.export.export(graph, (example,), dynamic_shapes=({0: batch},))
    for module in traced.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # has paths of this machine
    return traced


def _forget_places(proto: Any) -> None:
    """Remove what the exporter notes of every node: its place in the programs of this machine."""
    for part in (proto.graph, *proto.functions):
        for item in (*part.node, *getattr(part, "input", ()), *part.value_info):
            if hasattr(item, "metadata_props"):
                del item.metadata_props[:]
        del part.metadata_props[:]
    for item in (*proto.graph.input, *proto.graph.output, *proto.graph.initializer):
        del item.metadata_props[:]
    for item in (*proto.graph.input, *proto.graph.output):
        item.type.tensor_type.shape.dim[0].dim_param = "batch"
    del proto.graph.value_info[:]  # has the exporter's own name for the batch


def _write(
    path: Path,
    content: bytes,
    model: PersonalClassifier,
    samples: NDArray[Any],
    probabilities: Callable[[NDArray[Any]], NDArray[np.float32]],
) -> Difference:
    """Write the file if it gives what the model gives, for one sample as for several."""
    samples = np.array(samples)  # a copy: the samples may be those of a mapped file
    expected = model.probabilities(samples)
    with _explaining(model, path.name):
        found = probabilities(samples)
        alone = probabilities(samples[:1])
    largest = max(float(np.abs(found - expected).max()), float(np.abs(alone - expected[:1]).max()))
    if not largest <= TOLERANCE:
        raise InputError(
            f"The exported model gives other probabilities, by up to {largest:.2g} on "
            f"{len(samples)} samples, and {TOLERANCE:g} is allowed: {path} is not written; use "
            f"--format folder."
        )
    with replacing(path) as new:
        new.write_bytes(content)
    return Difference(largest, len(samples))


@contextmanager
def _explaining(model: PersonalClassifier, what: str) -> Iterator[None]:
    """Turn whatever an exporter raises on a user's module into one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = describe_error(cause)
        raise InputError(
            f"The model {model.config.model} cannot be exported to {what} ({reason}): use "
            f"--format folder."
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what exporters say to their own developers."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
