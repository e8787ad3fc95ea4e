"""Decoding sets of intracranial sessions: windows, labels, channels and folds that do not leak."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from popflow.evaluate.metrics import auroc, correlation
from popflow.evaluate.splits import assert_disjoint, blocked_folds
from popflow.prepare.intracranial import Session, channel_statistics
from popflow.runtime.refusal import Refusal
from popflow.runtime.seeds import generator

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


@dataclass
class DecodingSet:
    """One task in one session; every method gets the same windows, channels and folds.

    Attributes
    ----------
    session, task : str
    kind : {"classify", "regress"}
    x : ndarray
        (windows, channels, dim), not standardised.
    spectrogram : ndarray or None
        (windows, channels, entries) of a plain log spectrogram, for the linear reference.
    y : ndarray
        0 or 1 (the positive label), or the behavioural signal.
    names : list of str
        Of the channels.
    lip : ndarray
        (channels, 3).
    folds : list of (train, test)
        Contiguous blocks of time.
    gaps : list of float
        Per fold, the smallest distance of a training from a test window, s; never negative.
    """

    session: str
    task: str
    kind: str
    x: np.ndarray
    spectrogram: np.ndarray | None
    y: np.ndarray
    names: list[str]
    lip: np.ndarray
    folds: list[tuple[np.ndarray, np.ndarray]]
    gaps: list[float]

    def standardised(self, train: np.ndarray) -> np.ndarray:
        """Standardise per channel and feature with the statistics of the training rows."""
        mean, spread = channel_statistics(self.x, train)
        return ((self.x - mean) / spread).astype(np.float32)


def decoding_sets(sessions: list[Session], settings: dict[str, Any]) -> list[DecodingSet]:
    """Make the decoding sets of a dataset.

    Parameters
    ----------
    sessions : list of Session
    settings : dict
        As ``evaluate-intracranial.schema.yaml`` describes.

    Raises
    ------
    Refusal
        When a task's column or one of its classes is absent.
    """
    seen = [s for s in sessions if s.role == "both"][: settings["sessions"]]
    chosen = seen + [s for s in sessions if s.role in ("decode", "held_out")]
    sets = []
    for session in chosen:
        allowed = _allowed(session, settings["decode_part"])
        channels = chosen_channels(session, settings)
        for task in settings["tasks"] if len(session.events) else []:
            sets.append(_classification(session, task, allowed, channels, settings))
        for target in settings["targets"]:
            sets.append(_regression(session, target, allowed, channels, settings))
    return sets


def chosen_channels(session: Session, settings: dict[str, Any]) -> np.ndarray:
    """Draw the channels of a session that all methods decode from; no label is looked at."""
    count = session.features.shape[1]
    if count <= settings["channels"]:
        return np.arange(count)
    rng = generator(settings["seed"], "channels", session.name)
    return np.sort(rng.choice(count, settings["channels"], replace=False))


def split_table(sets: list[DecodingSet]) -> "pd.DataFrame":
    """Tell the folds, with the proof that training and test windows do not overlap."""
    import pandas as pd

    rows = []
    for each in sets:
        for fold, ((train, test), gap) in enumerate(zip(each.folds, each.gaps, strict=True)):
            row = {"session": each.session, "task": each.task, "fold": fold, "split": "blocked"}
            row |= {"train": len(train), "test": len(test), "smallest_gap_s": gap}
            rows.append(row | {"channels": each.x.shape[1]})
    return pd.DataFrame(rows)


def channel_scores(sets: list[DecodingSet]) -> "pd.DataFrame":
    """Score every channel alone by a linear model of fixed penalty, on the same folds.

    Returns
    -------
    DataFrame
        session, task, name, metric (auc or r), value (mean over folds).
    """
    import pandas as pd
    from sklearn.linear_model import LogisticRegression, Ridge

    rows = []
    for each in sets:
        values = np.zeros((len(each.folds), len(each.names)))
        for fold, (train, test) in enumerate(each.folds):
            x, y = each.standardised(train), each.y
            for channel in range(len(each.names)):
                one = x[:, channel]
                if each.kind == "regress":
                    output = Ridge().fit(one[train], y[train]).predict(one[test])
                    values[fold, channel] = correlation(y[test], output)
                else:
                    model = LogisticRegression(C=0.1).fit(one[train], y[train])
                    output = model.decision_function(one[test])
                    values[fold, channel] = auroc(y[test] == 1, output)
        metric = "r" if each.kind == "regress" else "auc"
        for name, value in zip(each.names, values.mean(axis=0), strict=True):
            row = {"session": each.session, "task": each.task, "name": name}
            rows.append(row | {"metric": metric, "value": value})
    return pd.DataFrame(rows, columns=["session", "task", "name", "metric", "value"])


def _allowed(session: Session, part: str) -> set[str]:
    """Give the parts of a session that may be decoded."""
    everything = {"train", "validation", "test", "purged"}
    if part == "all" or session.role in ("decode", "held_out"):
        return everything
    return {"validation", "test"}


def _classification(
    session: Session,
    task: dict[str, str],
    allowed: set[str],
    channels: np.ndarray,
    settings: dict[str, Any],
) -> DecodingSet:
    """Take the events of both labels."""
    events, column = session.events, task["column"]
    where = f"session {session.name}, events, column {column!r}"
    if column not in events:
        raise Refusal(
            where,
            "no such column",
            f"one of {', '.join(events.columns)}",
            "mend `tasks` under evaluate",
        )
    labels = events[column].astype(str)
    both = labels.isin([task["positive"], task["negative"]])
    rows = np.flatnonzero(both & events["part"].isin(allowed))
    y = (labels.to_numpy()[rows] == task["positive"]).astype(int)
    if len(set(y)) < 2:
        found = ", ".join(sorted(set(labels))) or "no events"
        raise Refusal(
            where,
            f"one class only among {len(rows)} events (labels there: {found})",
            f"events of both {task['positive']!r} and {task['negative']!r}",
            "mend `positive` and `negative` of the task, or take another column",
        )
    if len(rows) < settings["min_events"]:
        raise Refusal(
            where,
            f"{len(rows)} events in the decoded part",
            f"at least {settings['min_events']}",
            "set decode_part: all, a lower min_events, or the role 'decode' for the session",
        )
    start = events["t_s"].to_numpy()[rows]
    spectrogram = np.asarray(session.event_spectrogram[rows])[:, channels]
    values = np.asarray(session.event_features[rows])[:, channels]
    folds, gaps = _folds(session, start, settings)
    for train, test in folds:
        if len(set(y[train])) < 2 or len(set(y[test])) < 2:
            raise Refusal(
                where,
                "a fold holds one class only",
                "both classes in every contiguous block",
                "set fewer folds under evaluate",
            )
    names, lip = session.electrodes["name"].iloc[channels].tolist(), session.lip[channels]
    place = names, lip, folds, gaps
    return DecodingSet(session.name, column, "classify", values, spectrogram, y, *place)


def _regression(
    session: Session,
    target: str,
    allowed: set[str],
    channels: np.ndarray,
    settings: dict[str, Any],
) -> DecodingSet:
    """Take all windows of the decoded part."""
    windows, column = session.windows, f"target_{target}"
    if column not in windows:
        raise Refusal(
            f"session {session.name}",
            f"no behavioural channel {target!r} was kept",
            "a channel that prepare keeps",
            f"set targets: [{target}] under prepare",
        )
    known = np.isfinite(windows[column].to_numpy(float))
    inside = windows["part"].isin(allowed).to_numpy()
    rows = np.flatnonzero(inside & known)
    y = windows[column].to_numpy(float)[rows]
    if len(rows) < inside.sum() / 2 or np.ptp(y) == 0:
        raise Refusal(
            f"session {session.name}, channel {target}",
            f"constant, or missing in {int((inside & ~known).sum())} of {inside.sum()} windows",
            "a varying signal",
            "take another channel",
        )
    folds, gaps = _folds(session, windows["t_s"].to_numpy()[rows], settings)
    values, lip = np.asarray(session.features[rows])[:, channels], session.lip[channels]
    names = session.electrodes["name"].iloc[channels].tolist()
    return DecodingSet(session.name, target, "regress", values, None, y, names, lip, folds, gaps)


def _folds(
    session: Session, start: np.ndarray, settings: dict[str, Any]
) -> tuple[list[tuple[np.ndarray, np.ndarray]], list[float]]:
    """Cut blocks of time and assert that no training window meets a test window."""
    stop = start + session.meta["window_s"]
    folds = blocked_folds(start, stop, settings["folds"], settings["purge_s"])
    return folds, [assert_disjoint(start, stop, train, test) for train, test in folds]
