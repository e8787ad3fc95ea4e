"""Pretrain PopT on the sessions of a dataset and represent all windows."""

from pathlib import Path

from popflow.models.popt.pretraining import new_network, pretrain, pretraining_sessions
from popflow.models.popt.representation import embed_windows
from popflow.prepare.intracranial import load_session
from popflow.runtime.files import write_h5ad, write_tsv
from popflow.runtime.job import checkpoints_of, job

with job(snakemake):
    wildcards, params = snakemake.wildcards, snakemake.params
    seed, settings = int(wildcards.seed), dict(params.settings)
    sessions = [load_session(Path(path).parent) for path in snakemake.input.sessions]
    encoder = sessions[0].meta["encoder"]
    net = new_network(encoder["dim"], settings, seed)
    history = pretrain(
        net,
        pretraining_sessions(sessions),
        settings,
        seed,
        checkpoints_of(snakemake),
        params.device,
        f"popt {wildcards.dataset} {wildcards.variant} seed {seed}",
    )
    data = {session.name: session.meta["content"]["features.npy"] for session in sessions}
    about = {"settings": settings, "encoder": encoder, "window_s": sessions[0].meta["window_s"]}
    about |= {"seed": seed, "variant": wildcards.variant, "code": params.code, "data": data}
    net.cpu().save(Path(snakemake.output.model).parent, about)
    write_tsv(history, snakemake.output.history)
    write_h5ad(embed_windows(net, sessions), snakemake.output.embedding)
