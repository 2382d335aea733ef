"""The adaptive Gaussian classifier as a scikit-learn estimator."""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from pfedfda.gaussian.adaptation import BetaMode, Solver, adapt
from pfedfda.gaussian.adapted import Betas
from pfedfda.gaussian.statistics import GaussianStatistics

Array = npt.NDArray[Any]


class AdaptiveGaussianClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Linear discriminant analysis that validates how far to trust its own few samples.

    Class means and tied covariance are estimated from the samples, and interpolated with prior
    ones by a weight β that k-fold validation chooses (eq. 9 of the pFedFDA paper): β = 1 is the
    samples alone, β = 0 the prior alone.

    Priors learned elsewhere, say on the features of many other users, make a good classifier
    out of very few labels. Without a prior the samples' class means are kept, and their
    covariance is drawn to its own diagonal: β = 1 then is linear discriminant analysis, β = 0 a
    naive Bayes classifier with variances that all classes share. This target needs no choice of
    scale, keeps each feature's variance, and is well conditioned with few samples.

    Parameters
    ----------
    prior_means : array-like of shape (n_prior_classes, n_features), default=None
        Class means at β = 0. Needs `prior_covariance`.
    prior_covariance : array-like of shape (n_features, n_features), default=None
        Covariance at β = 0. Needs `prior_means`.
    prior_classes : array-like of shape (n_prior_classes,), default=None
        The label of each row of `prior_means`. Without it they are the sorted labels of `y`.
    betas : {"single", "multiple", "none"}, default="single"
        One β; one for the means and one for the covariance; or β = 1 without search. Without a
        prior the means have nothing to be drawn to, and only the covariance's β matters.
    beta : float, default=None
        A fixed β in [0, 1] instead of a search.
    n_folds : int, default=5
        Folds of the search. With fewer than two samples a fold there are fewer folds; with
        fewer than four samples there is no search, and β = 0.
    ridge : float, default=0.0
        Added to the diagonal of the samples' covariance. A covariance that is not positive
        definite is replaced by the nearest one with the same variances in any case.
    absent_class_count : float, default=0.0
        Classes of the prior that `y` does not hold are dropped at 0. A positive number keeps
        them in `classes_`, as if that many samples of each had been seen.
    solver : {"spectral", "reference"}, default="spectral"
        How β is searched; both find the same.
    random_state : int, RandomState instance or None, default=0
        Shuffles the samples before they are dealt to folds. None draws on NumPy's global
        state.

    Attributes
    ----------
    beta_ : float or tuple of two floats
        The β used; with `betas="multiple"` that of the means, then that of the covariance.
    classes_ : ndarray of shape (n_classes,)
        The labels known to the classifier.
    means_ : ndarray of shape (n_classes, n_features)
        Interpolated class means.
    covariance_ : ndarray of shape (n_features, n_features)
        Interpolated covariance.
    priors_ : ndarray of shape (n_classes,)
        Class priors: shares in `y`.
    coef_ : ndarray of shape (n_classes, n_features), or (1, n_features) for two classes
        Weights of the decision function.
    intercept_ : ndarray of shape (n_classes,), or (1,) for two classes
        Its intercept.
    validation_loss_ : float or None
        Mean negative log posterior in validation at `beta_`; None if nothing was searched.
    n_features_in_ : int
        The number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if `X` had any.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> classifier = AdaptiveGaussianClassifier().fit(X[::10], y[::10])
    >>> bool(classifier.score(X, y) > 0.9)
    True
    """

    def __init__(
        self,
        *,
        prior_means: npt.ArrayLike | None = None,
        prior_covariance: npt.ArrayLike | None = None,
        prior_classes: npt.ArrayLike | None = None,
        betas: BetaMode = "single",
        beta: float | None = None,
        n_folds: int = 5,
        ridge: float = 0.0,
        absent_class_count: float = 0.0,
        solver: Solver = "spectral",
        random_state: int | np.random.RandomState | None = 0,
    ):
        self.prior_means = prior_means
        self.prior_covariance = prior_covariance
        self.prior_classes = prior_classes
        self.betas = betas
        self.beta = beta
        self.n_folds = n_folds
        self.ridge = ridge
        self.absent_class_count = absent_class_count
        self.solver = solver
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Estimate means and covariance, search β, and solve for the classifier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.
        y : array-like of shape (n_samples,)
            Labels.
        groups : array-like of shape (n_samples,), default=None
            Equal for rows that are copies of one sample, say augmented views of one image.
            Copies never stand on both sides of a fold.

        Returns
        -------
        self : AdaptiveGaussianClassifier
            The fitted estimator.
        """
        features, targets = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(targets)
        classes, prior = self._prior(np.unique(targets), features.shape[1])
        labels = torch.from_numpy(np.searchsorted(classes, targets))
        counts = np.bincount(labels.numpy(), minlength=len(classes)).astype(np.float64)
        counts[counts == 0] = self.absent_class_count
        sample_ids = None
        if groups is not None:
            sample_ids = torch.from_numpy(np.unique(np.asarray(groups), return_inverse=True)[1])
        samples = len(labels) if sample_ids is None else int(sample_ids.max()) + 1
        # fewer, larger folds where a fold would hold less than two samples
        n_folds = self.n_folds if self.n_folds < 2 else max(2, min(self.n_folds, samples // 2))
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        adaptation = adapt(
            torch.tensor(features),
            labels,
            prior,
            priors=torch.from_numpy(counts),
            sample_ids=sample_ids,
            betas=self.betas if self.beta is None else Betas(self.beta, self.beta),
            n_folds=n_folds,
            ridge=self.ridge,
            solver=self.solver,
            generator=torch.Generator().manual_seed(int(seed)),
        )
        betas = adaptation.betas
        separate = self.beta is None and self.betas == "multiple"
        self.beta_ = (betas.means, betas.covariance) if separate else betas.covariance
        self.validation_loss_ = betas.loss
        self.classes_ = classes
        self.means_ = adaptation.statistics.means.numpy()
        self.covariance_ = adaptation.statistics.covariance.numpy()
        self.priors_ = adaptation.priors.numpy()
        self.coef_ = adaptation.classifier.weight.numpy()
        self.intercept_ = adaptation.classifier.bias.numpy()
        if len(classes) == 2:
            self.coef_ = self.coef_[1:] - self.coef_[:1]
            self.intercept_ = self.intercept_[1:] - self.intercept_[:1]
        return self

    def _prior(self, seen: Array, n_features: int) -> tuple[Array, GaussianStatistics | None]:
        """Return the classes to know, and the prior statistics with a row for each of them."""
        if not self.absent_class_count >= 0:
            raise ValueError(
                f"absent_class_count is {self.absent_class_count}, but only numbers of at least 0 "
                "are allowed."
            )
        if self.prior_means is None and self.prior_covariance is None:
            if self.prior_classes is not None:
                raise ValueError(
                    "prior_classes is given without prior_means, but both or neither are needed."
                )
            return seen, None
        if self.prior_means is None or self.prior_covariance is None:
            missing = "prior_means" if self.prior_means is None else "prior_covariance"
            raise ValueError(
                f"{missing} is None, but prior_means and prior_covariance come only together."
            )
        means = np.asarray(self.prior_means, dtype=np.float64)
        covariance = np.asarray(self.prior_covariance, dtype=np.float64)
        known = seen if self.prior_classes is None else np.asarray(self.prior_classes)
        if means.shape != (len(known), n_features):
            raise ValueError(
                f"prior_means has shape {means.shape}, but ({len(known)}, {n_features}) is needed: "
                "one row for each class, one column for each feature."
            )
        if covariance.shape != (n_features, n_features):
            raise ValueError(
                f"prior_covariance has shape {covariance.shape}, but "
                f"({n_features}, {n_features}) is needed."
            )
        if len(np.unique(known)) != len(known):
            raise ValueError("prior_classes holds a label twice, but each may occur only once.")
        strangers = np.setdiff1d(seen, known)
        if len(strangers):
            raise ValueError(
                f"y holds the class {strangers[0]!r}, but only those of prior_classes are allowed."
            )
        classes = np.unique(known) if self.absent_class_count > 0 else seen
        order = np.argsort(known)
        rows = order[np.searchsorted(known[order], classes)]
        prior = GaussianStatistics(torch.from_numpy(means[rows]), torch.tensor(covariance))
        return classes, prior

    def decision_function(self, X: npt.ArrayLike) -> Array:
        """Return the logits of eq. 4, or for two classes the log odds of the second.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or (n_samples,) for two classes
            Larger where a class is more likely.
        """
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float64, reset=False)
        scores: Array = features @ self.coef_.T + self.intercept_
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_log_proba(self, X: npt.ArrayLike) -> Array:
        """Return the log posterior of each class, shape (n_samples, n_classes).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack([np.zeros_like(scores), scores])
        log_posteriors: Array = log_softmax(scores, axis=1)
        return log_posteriors

    def predict_proba(self, X: npt.ArrayLike) -> Array:
        """Return the posterior probability of each class, shape (n_samples, n_classes).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.
        """
        probabilities: Array = np.exp(self.predict_log_proba(X))
        return probabilities

    def predict(self, X: npt.ArrayLike) -> Array:
        """Return the most likely class of each row, shape (n_samples,).

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Features.
        """
        scores = self.decision_function(X)
        chosen = (scores > 0).astype(np.int64) if scores.ndim == 1 else scores.argmax(1)
        labels: Array = self.classes_[chosen]
        return labels
