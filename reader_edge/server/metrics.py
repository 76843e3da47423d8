"""Metrics for Prometheus: requests, queue, tokens, drafts by source, times between tokens."""

from collections.abc import Callable, Collection, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from reader_edge.server.ignored_fields import IgnoredFields
from reader_edge_runtime import AsyncEngine, GenerationStats
from reader_edge_runtime.decoding.recorder import Recorder
from reader_edge_runtime.stats import STEP_PARTS

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class StepMetrics(Collector):
    """What the decoders' steps took, read where they are counted. Those of models that were unloaded stay counted."""

    def __init__(self, engines: Collection[AsyncEngine]) -> None:
        self._engines = engines
        self._num_steps = 0
        self._seconds = dict.fromkeys(STEP_PARTS, 0.0)

    def take(self, recorder: Recorder) -> None:
        """Keep what an engine counted that is unloaded."""
        self._num_steps += recorder.num_steps
        for part in STEP_PARTS:
            self._seconds[part] += getattr(recorder.total, part)

    def collect(self) -> Iterator[Metric]:
        recorders = [each.engine.decoder.recorder for each in self._engines]
        num_steps = self._num_steps + sum(each.num_steps for each in recorders)
        yield CounterMetricFamily("reader_edge_decoder_steps", "Passes over all answers.", num_steps)
        seconds = CounterMetricFamily("reader_edge_step_seconds", "What their parts took.", labels=["part"])
        for part, before in self._seconds.items():
            total = before + sum(getattr(each.total, part) for each in recorders)
            seconds.add_metric([part.removesuffix("_s")], total)
        yield seconds


class Metrics:
    """Counts of one server, over all its models. ignored_fields: of requests. Those named `vllm:` are what tools read
    that know vLLM's. num_waiters: requests that wait for a model."""

    def __init__(self, *engines: AsyncEngine, num_waiters: Callable[[], int] = int) -> None:
        self._engines = list(engines)
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "reader_edge_requests", "Requests answered, by path and HTTP status.", ["path", "status"], registry=registry
        )
        self.ignored_fields = IgnoredFields(registry)
        running = Gauge("reader_edge_requests_running", "Answers being decoded.", registry=registry)
        running.set_function(lambda: sum(each.num_running for each in self._engines))
        waiting = Gauge("reader_edge_requests_waiting", "Answers not begun yet.", registry=registry)
        waiting.set_function(lambda: num_waiters() + sum(each.num_waiting for each in self._engines))
        kv_bytes = Gauge("reader_edge_kv_cache_bytes", "Memory of the KV cache.", registry=registry)
        kv_bytes.set_function(lambda: sum(each.engine.decoder.num_kv_bytes for each in self._engines))
        self._decoders = StepMetrics(self._engines)
        registry.register(self._decoders)
        self._loads = Counter("reader_edge_model_loads", "Times a model was loaded.", ["model"], registry=registry)
        self._loaded = Gauge("reader_edge_model_loaded", "Whether a model is loaded.", ["model"], registry=registry)
        self._prefill_s = Counter("reader_edge_prefill_seconds", "Scoring prompts.", registry=registry)
        self._prompt_tokens = Counter("reader_edge_prompt_tokens", "Tokens of prompts.", registry=registry)
        self._reused_tokens = Counter(
            "reader_edge_reused_prompt_tokens", "Those the KV cache held already.", registry=registry
        )
        self._tokens = Counter("reader_edge_tokens", "Tokens of answers.", registry=registry)
        self._steps = Counter("reader_edge_steps", "Passes that answers took part in.", registry=registry)
        self._drafted = Counter("reader_edge_drafted_tokens", "Tokens drafted.", ["source"], registry=registry)
        self._accepted = Counter("reader_edge_accepted_tokens", "Those accepted.", ["source"], registry=registry)
        self._draft_steps = Counter("vllm:spec_decode_num_drafts", "Steps that verified a draft.", registry=registry)
        self._all_drafted = Counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", registry=registry)
        self._all_accepted = Counter("vllm:spec_decode_num_accepted_tokens", "Those accepted.", registry=registry)
        self._first_s = Histogram(
            "reader_edge_first_token_seconds", "From request to first token.", buckets=_SECONDS, registry=registry
        )
        self._token_s = Histogram(
            "reader_edge_token_seconds", "Between tokens of an answer.", buckets=_SECONDS, registry=registry
        )

    def add(self, engine: AsyncEngine, name: str) -> None:
        """Count an engine's too, of a model of this name that was loaded."""
        self._engines.append(engine)
        self._loads.labels(name).inc()
        self._loaded.labels(name).set(1)

    def remove(self, engine: AsyncEngine, name: str) -> None:
        """Count what an engine did, and no further: its model is unloaded."""
        self._engines.remove(engine)
        self._decoders.take(engine.engine.decoder.recorder)
        self._loaded.labels(name).set(0)

    def count_request(self, path: str, status: int) -> None:
        self._requests.labels(path, str(status)).inc()

    def count_answer(self, stats: GenerationStats) -> None:
        """Count an answer that has ended, or what there is of one that was given up."""
        self._prefill_s.inc(stats.prefill_s)
        self._prompt_tokens.inc(stats.num_prompt_tokens)
        self._reused_tokens.inc(stats.num_reused_tokens)
        self._tokens.inc(stats.num_tokens)
        self._steps.inc(stats.num_steps)
        # As lists, since the step that one is given up in may count on.
        for source, num_tokens in list(stats.drafted_by_source.items()):
            self._drafted.labels(source).inc(num_tokens)
        for source, num_tokens in list(stats.accepted_by_source.items()):
            self._accepted.labels(source).inc(num_tokens)
        self._draft_steps.inc(stats.num_steps - stats.steps_by_width[1])
        self._all_drafted.inc(stats.num_drafted_tokens)
        self._all_accepted.inc(stats.num_accepted_tokens)

    def time_tokens(self, seconds: float, num_tokens: int, is_first: bool) -> None:
        """Count the time that tokens took which came together."""
        if is_first:
            self._first_s.observe(seconds)
        elif num_tokens:
            for _ in range(num_tokens):
                self._token_s.observe(seconds / num_tokens)

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)
