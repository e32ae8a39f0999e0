"""Metrics of artifacts: what is stored, what moves in and out, and what was deleted."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from codeq.server.state import AppState
from codeq.usecases.artifact_storage import ArtifactCounts


def show_artifacts(state: AppState) -> None:
    """Includes artifacts in the metrics of a server that has a place for them."""
    if state.core.artifacts is not None:
        state.metrics.registry.register(_ArtifactMetrics(state, state.core.artifacts.counts))


class _ArtifactMetrics(Collector):
    def __init__(self, state: AppState, counts: ArtifactCounts) -> None:
        self._state = state
        self._counts = counts

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        counts, state = self._counts, self._state
        totals = (
            ("codeq_artifact_uploads", "Artifacts that were uploaded, or came with a result", counts.uploads),
            ("codeq_artifact_upload_bytes", "Their bytes", counts.uploaded_bytes),
            ("codeq_artifact_downloads", "Downloads of artifacts, or of parts of them", counts.downloads),
            ("codeq_artifact_download_bytes", "Their bytes", counts.downloaded_bytes),
            (
                "codeq_artifact_objects_deleted",
                "Deleted objects, of purged tasks and unused ones",
                counts.deleted_objects,
            ),
        )
        for name, text, number in totals:
            yield CounterMetricFamily(name, text, value=number)
        yield GaugeMetricFamily("codeq_artifact_objects", "Objects when they were last counted", value=counts.objects)
        yield GaugeMetricFamily("codeq_artifact_bytes", "Their bytes", value=counts.bytes)
        running = GaugeMetricFamily("codeq_artifact_transfers", "Transfers under way", labels=["direction"])
        running.add_metric(["upload"], state.uploads.running)
        running.add_metric(["download"], state.downloads.running)
        yield running
