"""What the parts of a contribution mean, for rules that compare clients with one another."""

from typing import NamedTuple


class Summand(NamedTuple):
    """How a client's own value comes out of what it adds to a sum.

    A sum needs none of this: clients are compared only where some of them may lie.
    """

    per: str | None = None
    """The summand by which this one is divided, such as the class counts under sums of features;
    None for the weight of the update. What the value is divided by is also its vote. It may lack
    the last dimensions."""
    covariance: bool = False
    """Whether it is a symmetric matrix, or its upper triangle, that has no negative eigenvalue."""
    about: str | None = None
    """For second moments, the sums of each class: matrices are compared about their means, by all
    classes together, because about zero they tell which classes a client has."""
