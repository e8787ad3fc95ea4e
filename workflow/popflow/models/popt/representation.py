"""The representation of windows: one CLS vector per moment."""

from typing import TYPE_CHECKING

import numpy as np

from popflow.models.popt.network import PopT
from popflow.prepare.intracranial import Session, channel_statistics

if TYPE_CHECKING:
    import anndata


def embed_windows(net: PopT, sessions: list[Session]) -> "anndata.AnnData":
    """Give the CLS vector of windows that follow each other without overlap.

    Parameters
    ----------
    net : PopT
    sessions : list of Session
        All channels of a session are one ensemble.

    Returns
    -------
    AnnData
        X windows × width; obs session, subject, window, t_s, part.
    """
    import anndata
    import pandas as pd

    vectors, tables = [], []
    for session in sessions:
        step = max(1, round(session.meta["window_s"] / session.meta["stride_s"]))
        mean, spread = channel_statistics(session.features, session.rows("train"))
        rows = np.arange(0, len(session.windows), step)
        vectors.append(net.transform((session.features[rows] - mean) / spread, session.lip))
        table = session.windows.iloc[rows][["index", "t_s", "part"]]
        table = table.rename(columns={"index": "window"})
        tables.append(table.assign(session=session.name, subject=session.subject))
    obs = pd.concat(tables, ignore_index=True)
    obs.index = [f"{s}-{w}" for s, w in zip(obs["session"], obs["window"], strict=True)]
    return anndata.AnnData(np.concatenate(vectors), obs=obs)
