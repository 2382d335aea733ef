"""pFedMe whose clients serve their copy of w, the model that they send, instead of θ.

That is what the program of pFedMe's authors evaluates: its list of personal tensors is the list of
the model's own, which are overwritten with w when a client has trained. As a method of its own, to
see how far this explains other numbers than ours:

    pfedfda run --method experiments/pfedme_w.py --federation cifar10-s --train-fraction 0.25
"""

from dataclasses import dataclass
from typing import ClassVar

from pfedfda.methods.base import Client, Personal, Tensors, Update
from pfedfda.methods.pfedme import PFedMe
from pfedfda.methods.registry import register
from pfedfda.models import model_tensors


@register
@dataclass(frozen=True)
class PFedMeW(PFedMe):
    """pFedMe that trains as ever, and serves the client's w."""

    name: ClassVar[str] = "pfedme-w"
    title: ClassVar[str] = "pFedMe, serving w"

    def train(self, client: Client, message: Tensors) -> Update:
        """Train as pFedMe does, and keep w instead of θ."""
        update = super().train(client, message)
        client.state = model_tensors(client.model)
        return update

    def personalize(self, client: Client, message: Tensors) -> Personal:
        """Use the client's w; one that has none makes it now."""
        w = client.state or self._solve(client, message)[0]
        client.model.load_state_dict(w)
        return Personal(client.model)
