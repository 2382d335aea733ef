import numpy as np
import pytest
from sklearn.base import clone
from sklearn.covariance import EmpiricalCovariance
from sklearn.datasets import load_digits, load_iris
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from pfedfda.gaussian import AdaptiveGaussianClassifier
from tests.gaussian.gaussian_clients import make_client


class GivenCovariance(EmpiricalCovariance):
    """Tells LDA a covariance instead of estimating one."""

    def __init__(self, value=None):
        super().__init__()
        self.value = value

    def fit(self, X, y=None):
        self.covariance_ = self.value
        return self


def test_it_is_a_scikit_learn_estimator():
    check_estimator(AdaptiveGaussianClassifier(), on_skip=None)


@pytest.mark.parametrize("first_class", [0, 1])
def test_beta_one_is_linear_discriminant_analysis(first_class):
    X, y = load_iris(return_X_y=True)
    X, y = X[y >= first_class], y[y >= first_class]
    ours = AdaptiveGaussianClassifier(beta=1.0).fit(X, y)
    lda = LinearDiscriminantAnalysis(
        solver="lsqr", covariance_estimator=GivenCovariance(ours.covariance_)
    ).fit(X, y)
    # The covariance is the usual pooled one, with n - 1 in place of n.
    pooled = LinearDiscriminantAnalysis(store_covariance=True).fit(X, y).covariance_
    np.testing.assert_allclose(ours.covariance_, pooled * len(y) / (len(y) - 1), rtol=1e-9)
    np.testing.assert_allclose(
        ours.predict_log_proba(X), lda.predict_log_proba(X), rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(ours.decision_function(X), lda.decision_function(X), atol=1e-6)


def test_beta_zero_without_prior_is_naive_bayes_with_common_variances():
    generator = np.random.default_rng(0)
    y = np.repeat([0, 1], 200)
    noise = generator.standard_normal((200, 3)) * [1, 2, 3]
    # The second class repeats the noise of the first, so both have the same variances.
    X = np.concatenate([noise, np.add(noise, [1, 0, 2])])
    ours = AdaptiveGaussianClassifier(beta=0.0).fit(X, y)
    theirs = GaussianNB(var_smoothing=0.0).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=5e-3)


def test_a_prior_makes_few_samples_go_far():
    X, y = load_digits(return_X_y=True)
    X = X / 16.0
    elsewhere, here, test = slice(0, 900), slice(900, 920), slice(920, None)
    prior = AdaptiveGaussianClassifier(ridge=0.01).fit(X[elsewhere], y[elsewhere])
    # At this user's, digits are written in a fainter hand.
    faint = 0.7 * X
    adaptive = AdaptiveGaussianClassifier(
        prior_means=prior.means_,
        prior_covariance=prior.covariance_,
        prior_classes=prior.classes_,
        absent_class_count=1.0,
        betas="multiple",
    ).fit(faint[here], y[here])
    alone = AdaptiveGaussianClassifier().fit(faint[here], y[here])
    assert adaptive.classes_.tolist() == list(range(10))
    assert adaptive.score(faint[test], y[test]) > alone.score(faint[test], y[test]) + 0.05
    assert 0 <= adaptive.beta_[0] <= 1


def test_shrinkage_helps_with_few_samples():
    X, y = load_digits(return_X_y=True)
    few, test = slice(0, 60), slice(60, None)
    adaptive = AdaptiveGaussianClassifier().fit(X[few], y[few])
    local = AdaptiveGaussianClassifier(betas="none").fit(X[few], y[few])
    assert 0 < adaptive.beta_ < 1
    assert adaptive.score(X[test], y[test]) > local.score(X[test], y[test])


def test_it_works_in_pipelines_and_searches():
    X, y = load_iris(return_X_y=True)
    labels = np.array(["setosa", "versicolor", "virginica"])[y]
    pipeline = make_pipeline(StandardScaler(), AdaptiveGaussianClassifier())
    assert cross_val_score(pipeline, X, labels).mean() > 0.95
    search = GridSearchCV(
        pipeline,
        {
            "adaptivegaussianclassifier__betas": ["single", "none"],
            "adaptivegaussianclassifier__ridge": [0.0, 0.1],
        },
        cv=3,
    ).fit(X, labels)
    assert search.best_score_ > 0.95
    assert set(search.predict(X)) == set(labels)


def test_both_solvers_and_all_modes_give_the_same_estimator_api():
    X, y = load_iris(return_X_y=True)
    spectral = AdaptiveGaussianClassifier().fit(X[::5], y[::5])
    reference = clone(spectral).set_params(solver="reference").fit(X[::5], y[::5])
    assert spectral.beta_ == pytest.approx(reference.beta_, abs=1e-4)
    assert spectral.validation_loss_ == pytest.approx(reference.validation_loss_, abs=1e-6)
    assert AdaptiveGaussianClassifier(beta=0.3).fit(X, y).beta_ == 0.3
    assert AdaptiveGaussianClassifier(betas="none").fit(X, y).beta_ == 1.0
    assert spectral.coef_.shape == (3, 4)
    assert spectral.priors_.sum() == pytest.approx(1.0)


def test_groups_keep_copies_from_leaking():
    client = make_client(0, dimension=20, classes=3, samples=30, copies=5, shift=0, copy_noise=0.1)
    X, y, groups = client.features.numpy(), client.labels.numpy(), client.sample_ids.numpy()
    prior = {"prior_means": client.shared.means, "prior_covariance": client.shared.covariance}
    classifier = AdaptiveGaussianClassifier(**prior)
    assert clone(classifier).fit(X, y, groups=groups).beta_ < clone(classifier).fit(X, y).beta_


def test_classes_of_the_prior_that_were_not_seen_are_dropped_unless_asked_for():
    prior = {
        "prior_means": [[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]],
        "prior_covariance": np.eye(2),
        "prior_classes": ["c", "a", "b"],
    }
    X, y = np.array([[3.0, 0.1], [2.9, -0.2], [0.1, 0.2]]), np.array(["a", "a", "c"])
    dropped = AdaptiveGaussianClassifier(**prior).fit(X, y)
    assert dropped.classes_.tolist() == ["a", "c"]
    assert dropped.beta_ == 0.0  # three samples cannot be validated
    np.testing.assert_allclose(dropped.means_, [[3.0, 0.0], [0.0, 0.0]])
    kept = AdaptiveGaussianClassifier(absent_class_count=1.0, **prior).fit(X, y)
    assert kept.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(kept.priors_, [0.5, 0.25, 0.25])
    assert kept.predict([[0.0, 3.0]]) == ["b"]


def test_bad_parameters_are_refused_in_one_sentence():
    X, y = load_iris(return_X_y=True)
    means, covariance = np.zeros((3, 4)), np.eye(4)

    def refused(match, **parameters):
        with pytest.raises(ValueError, match=match) as caught:
            AdaptiveGaussianClassifier(**parameters).fit(X, y)
        assert str(caught.value).endswith(".")

    refused("prior_covariance is None", prior_means=means)
    refused("prior_means is None", prior_covariance=covariance)
    refused("prior_classes is given without prior_means", prior_classes=[0, 1])
    refused(
        r"prior_means has shape \(2, 4\), but \(3, 4\) is needed",
        prior_means=means[:2],
        prior_covariance=covariance,
    )
    refused(
        r"prior_covariance has shape \(3, 3\), but \(4, 4\) is needed",
        prior_means=means,
        prior_covariance=np.eye(3),
    )
    refused(
        r"y holds the class .*, but only those of prior_classes",
        prior_means=means,
        prior_covariance=covariance,
        prior_classes=[0, 1, 7],
    )
    refused(
        "prior_classes holds a label twice",
        prior_means=means,
        prior_covariance=covariance,
        prior_classes=[0, 1, 1],
    )
    refused("absent_class_count is -1", absent_class_count=-1)
    refused(r"beta is 1\.5", beta=1.5)
    refused("n_folds is 1", n_folds=1)
