"""Panels of the services: all of them together, then text, audio and image."""

from __future__ import annotations

from monitoring.panel import Panel, Query
from monitoring.queries import MODEL, WINDOW, mean, quantiles, rate, total

TEXT_OPERATIONS = 'gen_ai_operation_name=~"chat|text_completion|embeddings"'
AUDIO_OPERATIONS = 'gen_ai_operation_name=~"transcription|translation"'
IMAGE_OPERATIONS = 'gen_ai_operation_name=~"image_.*"'

OVERVIEW = (
    Panel(
        "Requests",
        "reqps",
        (rate("allm_requests_total", "model", 'model=~"$model",rpc!~"ModelServicer.*"'),),
        "Requests that ended, well or not, a second.",
    ),
    Panel(
        "Errors by code",
        "reqps",
        (rate("allm_errors_total", "code", 'model=~"$model|"', needed=False),),
        "Requests that ended with an error, a second; docs/errors.md explains the codes.",
    ),
    Panel(
        "Running and waiting",
        "short",
        (
            total("allm_requests_running", "{{model}} running"),
            total("allm_requests_waiting", "{{model}} waiting"),
        ),
        "Requests that have a place in the batch, and that wait for one or for their model to load.",
    ),
    Panel(
        "Request duration",
        "s",
        quantiles("gen_ai_server_request_duration_seconds"),
        "From arrival at the service to the last byte, however the request ended.",
    ),
    Panel(
        "Time in the queue",
        "s",
        quantiles("allm_request_queue_seconds"),
        "From when a request could have been computed to its place in the batch.",
    ),
    Panel(
        "Models in memory",
        "short",
        (total("allm_models_loaded"),),
        "On how many replicas a model is loaded.",
    ),
    Panel(
        "Replicas",
        "short",
        (Query("max by (modality) (allm_replicas_live)", "{{modality}}"),),
        "Services that have reported to the catalog lately.",
    ),
    Panel(
        "Processes that answer",
        "short",
        (Query('sum by (job) (up{job=~"allm.*"})', "{{job}}"),),
        "What Prometheus could scrape.",
    ),
    Panel(
        "Steps",
        "ops",
        (rate("allm_engine_steps_total", "model"),),
        "Steps of the workers, a second. None while requests wait: the worker hangs or loads.",
    ),
)
TEXT = (
    Panel(
        "Tokens",
        "short",
        (
            rate("allm_generated_tokens_total", "model", legend="{{model}} generated"),
            rate("allm_prompt_tokens_total", "model", legend="{{model}} prompt"),
            rate("allm_cached_tokens_total", "model", legend="{{model}} of it cached"),
        ),
        "Tokens a second.",
    ),
    Panel(
        "Time to first token",
        "s",
        quantiles("gen_ai_server_time_to_first_token_seconds"),
        "From when the loaded model was given the request.",
    ),
    Panel(
        "Time per output token",
        "s",
        quantiles("gen_ai_server_time_per_output_token_seconds"),
        "Between the tokens of an answer.",
    ),
    Panel(
        "Tokens of a request",
        "short",
        tuple(
            Query(
                f"histogram_quantile(0.95, sum by (le, model) (rate(gen_ai_client_token_usage_bucket"
                f'{{{MODEL},gen_ai_token_type="{kind}"}}[{WINDOW}])))',
                f"{{{{model}}}} {kind} p95",
            )
            for kind in ("input", "output")
        ),
        "How long prompts and answers are: 95% are shorter.",
    ),
    Panel(
        "Batch",
        "short",
        (
            Query(mean("allm_batch_sequences").expression, "{{model}} sequences"),
            Query(mean("allm_batch_tokens").expression, "{{model}} tokens"),
        ),
        "Mean of what a step computed together.",
    ),
    Panel(
        "Key-value cache",
        "short",
        (
            total("allm_kv_cells_active", "{{model}} active"),
            total("allm_kv_cells_cached", "{{model}} cached"),
            total("allm_kv_cells_capacity", "threshold {{model}} capacity"),
        ),
        "Cells that running requests hold, and that only the prefix cache holds.",
    ),
    Panel(
        "Prompts found in the cache",
        "percentunit",
        (
            Query(
                f"sum by (model) (rate(allm_cached_tokens_total{{{MODEL}}}[{WINDOW}])) / "
                f"(sum by (model) (rate(allm_prompt_tokens_total{{{MODEL}}}[{WINDOW}])) > 0)",
                "{{model}}",
            ),
        ),
        "Share of prompt tokens that need not be computed.",
    ),
    Panel(
        "Requests that start over",
        "ops",
        (rate("allm_requests_preempted_total", "model"),),
        "Requests that lost their cells to others, a second. Often: the cache is too small (ALLM_KV_TOKENS).",
    ),
    Panel(
        "Requests by operation",
        "reqps",
        (rate("gen_ai_server_request_duration_seconds_count", "gen_ai_operation_name", f"{MODEL},{TEXT_OPERATIONS}"),),
        "Chats, completions and embeddings, a second.",
    ),
)
AUDIO = (
    Panel(
        "Seconds of sound a second",
        "short",
        (
            rate("allm_audio_seconds_total", "model", legend="{{model}} sound"),
            rate("allm_speech_seconds_total", "model", legend="{{model}} of it decoded"),
        ),
        "How much faster than real time transcription is, over all requests.",
    ),
    Panel(
        "Time to first segment",
        "s",
        quantiles("allm_time_to_first_segment_seconds"),
        "From when the loaded model was given the request.",
    ),
    Panel("Windows in a step", "short", (mean("allm_batch_windows"),), "Mean of what a step computed together."),
    Panel(
        "Duration of transcriptions",
        "s",
        quantiles("gen_ai_server_request_duration_seconds", f"{MODEL},{AUDIO_OPERATIONS}"),
        "From arrival to the last byte.",
    ),
)
IMAGE = (
    Panel(
        "Pictures",
        "short",
        (rate("allm_images_total", "model", legend="{{model}} pictures"),),
        "Pictures a second, previews not counted.",
    ),
    Panel(
        "Steps of pictures",
        "ops",
        (rate("allm_image_steps_total", "model"),),
        "Steps of single pictures a second: the size of a batch times its steps.",
    ),
    Panel("Pictures in a step", "short", (mean("allm_batch_images"),), "Mean of what a step computed together."),
    Panel(
        "Time to first picture",
        "s",
        quantiles("allm_time_to_first_image_seconds"),
        "From when the loaded model was given the request.",
    ),
    Panel(
        "Duration of requests for pictures",
        "s",
        quantiles("gen_ai_server_request_duration_seconds", f"{MODEL},{IMAGE_OPERATIONS}"),
        "From arrival to the last byte.",
    ),
)
