"""The JSON documents of the commands for ways of training that are questions of their own."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from simulator._version import __version__
from simulator.questions.decision_documents import decision_head
from simulator.report.document import SCHEMA

if TYPE_CHECKING:
    from simulator.questions.distillation.answer import Distilled
    from simulator.questions.job_schedule.answer import JobSchedule
    from simulator.questions.parameter_server.answer import Served, ServedWay
    from simulator.questions.run_options import Piece
    from simulator.questions.sites.answer import Alternative, Cycle, SeveralSites, SiteStep
    from simulator.questions.sparse.answer import Recommended


def sites_document(answer: SeveralSites) -> dict[str, Any]:
    """Write a run over several sites: sites, cycle, rates needed, what else one could do."""
    return {
        **decision_head("sites", answer.scenario),
        "outer_step": answer.outer.name,
        "compression": answer.compression.name,
        "sites": [_site(step) for step in answer.steps],
        "even_batches": list(answer.even_batches) if answer.even_batches else None,
        "cycle": _cycle(answer.cycle) if answer.cycle else None,
        "uplink_bytes_per_s_for_utilisation": [
            {"utilisation": share, "bytes_per_s": _known(rate)}
            for share, rate in answer.uplinks.items()
        ],
        "more_steps_fraction": answer.more_steps,
        "more_steps_given": answer.sites.more_steps_fraction is not None,
        "alternatives": [_alternative(row) for row in answer.alternatives],
        "wait_days": answer.wait_days,
    }


def _site(step: SiteStep) -> dict[str, Any]:
    return {
        "name": step.place.name,
        "cluster": step.place.cluster,
        "accelerator": step.accelerator,
        "gpus": step.place.gpus,
        "batch": step.batch,
        **_piece(step),
        "step_time_s": _known(step.step_time_s),
        "own_s": step.own_s,
        "extra_gpu_bytes": step.extra_bytes,
        "host_bytes": step.host_bytes,
    }


def _cycle(cycle: Cycle) -> dict[str, Any]:
    return {
        "inner_step_s": cycle.inner_step_s,
        "inner_steps": cycle.inner_steps,
        "fragments": cycle.fragments,
        "message_bytes": cycle.message_bytes,
        "sent_bytes": cycle.sent_bytes,
        "exchange_s": cycle.exchange_s,
        "exposed_s": cycle.exposed_s,
        "own_s": cycle.own_s,
        "total_s": cycle.total_s,
        "utilisation": cycle.utilisation,
        "mean_bytes_per_s": cycle.mean_bytes_per_s,
    }


def _alternative(row: Alternative) -> dict[str, Any]:
    return {
        "name": row.name,
        "gpus": row.gpus,
        "reason": row.reason or None,
        "step_time_s": _known(row.step_time_s),
        "tokens_per_s": row.tokens_per_s,
        "days_ideal": row.days_ideal,
    }


def _way(way: ServedWay) -> dict[str, Any]:
    return {
        "name": way.name,
        "reason": way.reason or None,
        "round_s": _known(way.round_s),
        "tokens_per_s": way.tokens_per_s,
        "stale_updates": way.stale_updates,
        "more_updates_fraction": way.more_updates,
        "days_ideal": way.days_ideal,
    }


def _piece(piece: Piece) -> dict[str, Any]:
    return {
        "feasible": not piece.reason,
        "reason": piece.reason or None,
        "layout": piece.layout,
    }


def parameter_server_document(answer: Served) -> dict[str, Any]:
    """Write a run with a parameter server: worker, messages, every way, other networks."""
    worker, one, played = answer.worker, answer.round, answer.played
    return {
        **decision_head("parameter-server", answer.scenario),
        "consistency": answer.section.consistency,
        "staleness": answer.section.staleness,
        "backup_workers": answer.section.backup_workers,
        "servers": answer.section.servers,
        "shard_bytes": answer.shard_bytes,
        "workers": answer.workers,
        "worker": {
            "gpus": worker.gpus,
            "batch": worker.batch,
            **_piece(worker),
            "step_s": _known(worker.step_s),
            "memory_bytes": worker.memory_bytes,
            "freed_bytes": worker.freed_bytes,
        },
        "round": None
        if one is None
        else {
            "push_bytes": one.push_bytes,
            "pull_bytes": one.pull_bytes,
            "pieces": one.pieces,
            "worker_bytes_per_s": one.worker_bytes_per_s,
            "servers_bytes_per_s": one.servers_bytes_per_s,
            "sum_s": one.sum_s,
            "update_s": one.update_s,
            "latency_s": one.latency_s,
        },
        "ways": [_way(way) for way in answer.ways],
        "backups": [asdict(backup) for backup in answer.backups],
        "networks": [
            {
                "factor": at.factor,
                "time_variation": at.spread,
                "round_s": at.round_s,
                "fastest": at.fastest,
            }
            for at in answer.networks
        ],
        "more_updates_given": answer.section.more_updates_fraction is not None,
        "played": None
        if played is None
        else {
            "round_s": played.played_s,
            "closed_form_s": played.closed_form_s,
            "pieces": played.pieces,
        },
    }


def distillation_document(answer: Distilled) -> dict[str, Any]:
    """Write a student with its teacher: beside it, and ahead of time."""
    one = answer.beside
    return {
        **decision_head("distil", answer.scenario),
        "teacher": {"name": answer.teacher.name, "parameters": answer.teacher.parameters},
        "feasible": one is not None,
        "reason": answer.reason or None,
        "beside": None
        if one is None
        else {
            "layout": one.layout,
            "step_time_s": one.step_time_s,
            "student_s": one.student_s,
            "teacher_s": one.teacher_s,
            "loss_s": one.loss_s,
            "memory_bytes": one.memory_bytes,
            "teacher_bytes": one.teacher_bytes,
        },
        "days_ideal": answer.days_ideal,
        "ahead": {
            "step_time_s": answer.alone_s,
            "stored_bytes": answer.stored_bytes,
            "teacher_gpu_hours": answer.teacher_gpu_hours,
        },
    }


def schedule_document(answer: JobSchedule) -> dict[str, Any]:
    """Write a schedule: every job, totals, teams, and the times that it was made from."""
    schedule, listed = answer.schedule, answer.list
    return {
        "schema": SCHEMA,
        "version": __version__,
        "command": "schedule",
        "minimize": listed.minimize,
        "parts": [{"name": p.name, "cluster": p.cluster, "gpus": p.gpus} for p in listed.parts],
        "jobs": [
            {
                "name": job.name,
                "team": told.team or None,
                "part": listed.parts[row.option.part].name,
                "gpus": row.option.gpus,
                "arrives_days": job.arrives,
                "start_days": row.start,
                "end_days": row.end,
                "slowdown": slow,
                "options": [
                    {"part": listed.parts[o.part].name, "gpus": o.gpus, "days": o.days}
                    for o in job.options
                ],
            }
            for job, told, row, slow in zip(
                schedule.jobs, listed.jobs, schedule.rows, schedule.slowdowns, strict=True
            )
        ],
        "makespan_days": schedule.makespan,
        "least_days": answer.least_days,
        "completion_days": schedule.completion,
        "slowdown": schedule.slowdown,
        "utilisation": answer.utilisation,
        "fairness": answer.fairness,
        "teams": [
            {"name": t.name or None, "gpu_days": t.gpu_days, "slowdown": t.slowdown}
            for t in answer.teams
        ],
    }


def recommender_document(answer: Recommended) -> dict[str, Any]:
    """Write a step of embedding tables beside a dense model."""
    deal = answer.deal
    return {
        **decision_head("recommender", answer.scenario),
        "parameters": answer.parameters,
        "step_time_s": answer.step_time_s,
        "samples_per_s": answer.samples_per_s,
        "terms_s": answer.terms_s,
        "hidden_s": answer.hidden_s,
        "fits": answer.fits,
        "memory_bytes": answer.memory_bytes,
        "tables_bytes": answer.kept_bytes,
        "host_bytes": answer.host_bytes,
        "usable_bytes": float(answer.dense.estimate.usable_bytes),
        "distinct_rows": answer.distinct_rows,
        "hit_fraction": answer.hit_fraction,
        "shards_of_ranks": [len(shards) for shards in deal.shards],
        "tables_by_row": len(deal.by_row),
    }


def _known(value: float) -> float | None:
    return value if isfinite(value) else None
