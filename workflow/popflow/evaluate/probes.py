"""Linear probes: what a frozen representation holds, read out the same way for every method."""

import warnings

import numpy as np

REGULARISATION = tuple(10.0**power for power in range(-4, 2))
PENALTIES = tuple(10.0**power for power in range(-3, 5))


def logistic_probe(
    x: np.ndarray,
    y: np.ndarray,
    folds: np.ndarray | list[tuple[np.ndarray, np.ndarray]],
    seed: int = 0,
    groups: np.ndarray | None = None,
    strengths: tuple[float, ...] = REGULARISATION,
) -> tuple[np.ndarray, np.ndarray]:
    """Predict classes out of fold by L2 logistic regression.

    Parameters
    ----------
    x : (n, p) float array
    y : (n,) array
        Classes.
    folds : (n,) int array, or list of (train, test)
        As `splits.grouped_folds` or `splits.blocked_folds` give them.
    seed : int
        Of the inner folds.
    groups : (n,) array, optional
        Groups that the inner folds keep together too.
    strengths : tuple of float
        Inverse penalties to choose from, by three inner folds of the training rows.

    Returns
    -------
    probabilities : (n, classes) float array
        NaN for rows that no fold tests.
    classes : (classes,) array
    """
    classes, codes = np.unique(np.asarray(y).astype(str), return_inverse=True)
    probabilities = np.full((len(codes), len(classes)), np.nan)
    for train, test in _pairs(folds):
        inner = None if groups is None else np.asarray(groups)[train]
        model = _logistic(x[train], codes[train], seed, inner, strengths)
        probabilities[test] = 0.0
        columns = model.classes_.astype(int)
        probabilities[np.ix_(test, columns)] = model.predict_proba(x[test])
    return probabilities, classes


def _logistic(x, y, seed, groups, strengths):
    """Fit one fold: scaling and the penalty are chosen inside of it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold, StratifiedKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
    smallest = np.bincount(y)[np.unique(y)].min()
    if groups is not None and min(len(np.unique(groups[y == c])) for c in np.unique(y)) >= 3:
        splitter = StratifiedGroupKFold(3, shuffle=True, random_state=seed)
    elif smallest >= 3 and groups is None:
        splitter = StratifiedKFold(3, shuffle=True, random_state=seed)
    else:
        model.set_params(logisticregression__C=0.1)
        return model.fit(x, y)
    search = GridSearchCV(
        model, {"logisticregression__C": list(strengths)}, cv=splitter, scoring="neg_log_loss"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search.fit(x, y, groups=groups)
    return search.best_estimator_


def ridge_probe(
    x: np.ndarray,
    y: np.ndarray,
    folds: np.ndarray | list[tuple[np.ndarray, np.ndarray]],
    penalties: tuple[float, ...] = PENALTIES,
) -> np.ndarray:
    """Predict numbers out of fold by ridge regression.

    Parameters
    ----------
    x : (n, p) float array
    y : (n,) or (n, q) float array
    folds : (n,) int array, or list of (train, test)
    penalties : tuple of float
        To choose from, by leave-one-out error on the training rows.

    Returns
    -------
    array of the shape of y
        NaN for rows that no fold tests.
    """
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    predicted = np.full(np.shape(y), np.nan)
    for train, test in _pairs(folds):
        model = make_pipeline(StandardScaler(), RidgeCV(alphas=penalties))
        predicted[test] = model.fit(x[train], y[train]).predict(x[test])
    return predicted


def _pairs(folds):
    """Give (train, test) row indices, whichever way the folds are told."""
    if isinstance(folds, list):
        return folds
    folds = np.asarray(folds)
    return [
        (np.flatnonzero((folds != fold) & (folds >= 0)), np.flatnonzero(folds == fold))
        for fold in np.unique(folds[folds >= 0])
    ]
