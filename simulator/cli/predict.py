"""`foreshard predict`: time, memory and cost of one layout, term by term."""

from __future__ import annotations

from simulator.cli.options import (
    ClusterName,
    Gpus,
    Json,
    ModelName,
    ScenarioFile,
    Set,
    SoftwareName,
    print_json,
    scenario_of,
    speaking,
)

__all__ = ["command"]


def command(
    scenario: ScenarioFile = None,
    model: ModelName = None,
    cluster: ClusterName = None,
    gpus: Gpus = None,
    software: SoftwareName = None,
    overrides: Set = None,
    as_json: Json = False,
) -> None:
    """Predict step time, memory and cost of one layout.

    The layout is what the layout section of the scenario (or --set layout.tp=8) says; fields that
    are not given take stated defaults. One that does not fit in memory is an answer, not an error.
    """
    with speaking():
        from simulator.planner.predict import predict

        described, assumed = scenario_of(
            scenario, model=model, cluster=cluster, gpus=gpus, software=software,
            overrides=overrides,
        )  # fmt: skip
        prediction = predict(described)
        if as_json:
            from simulator.report.document import predict_document

            print_json(predict_document(prediction))
        else:
            from simulator.cli.screen_predict import show

            show(prediction, assumed)
