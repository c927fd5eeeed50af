"""Panels for all services together, then for text, audio and image."""

from __future__ import annotations

from monitoring.panel import MODEL, WINDOW, Panel, Query, mean, quantiles, rate, total

TEXT_OPERATIONS = 'gen_ai_operation_name=~"chat|text_completion|embeddings|rerank"'
AUDIO_OPERATIONS = 'gen_ai_operation_name=~"transcription|translation"'
IMAGE_OPERATIONS = 'gen_ai_operation_name=~"image_.*"'

OVERVIEW = (
    Panel(
        "Requests",
        "reqps",
        (rate("allm_requests_total", "model", 'model=~"$model",rpc!~"ModelServicer.*"'),),
        "Finished requests per second, successful or failed.",
    ),
    Panel(
        "Errors by code",
        "reqps",
        (rate("allm_errors_total", "code", 'model=~"$model|"', needed=False),),
        "Failed requests per second; docs/errors.md explains the codes.",
    ),
    Panel(
        "Parameters without effect",
        "ops",
        (rate("allm_ignored_parameters_total", "model", needed=False),),
        "Parameters of requests that have no effect, such as unknown ones, per second; the log names them.",
    ),
    Panel(
        "Running and waiting",
        "short",
        (
            total("allm_requests_running", "{{model}} running"),
            total("allm_requests_waiting", "{{model}} waiting"),
        ),
        "Running requests are in the batch. Waiting requests wait for the batch or for their model to load.",
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
        "From the moment a request is ready for computation to its start in the batch.",
    ),
    Panel(
        "Loaded models",
        "short",
        (total("allm_models_loaded"),),
        "Number of replicas that have loaded the model.",
    ),
    Panel(
        "Replicas",
        "short",
        (Query("max by (modality) (allm_replicas_live)", "{{modality}}"),),
        "Replicas that report to the catalog.",
    ),
    Panel(
        "Scraped processes",
        "short",
        (Query('sum by (job) (up{job=~"allm.*"})', "{{job}}"),),
        "Processes that Prometheus can scrape.",
    ),
    Panel(
        "Engine steps",
        "ops",
        (rate("allm_engine_steps_total", "model"),),
        "Steps of the workers per second. If there are none while requests wait, the worker hangs or loads.",
    ),
)
TEXT = (
    Panel(
        "Tokens",
        "short",
        (
            rate("allm_generated_tokens_total", "model", legend="{{model}} generated"),
            rate("allm_prompt_tokens_total", "model", legend="{{model}} prompt"),
            rate("allm_cached_tokens_total", "model", legend="{{model}} prompt, cached"),
            rate("allm_draft_tokens_total", "model", legend="{{model}} guesses"),
            rate("allm_accepted_draft_tokens_total", "model", legend="{{model}} guesses, right"),
        ),
        "Tokens per second.",
    ),
    Panel(
        "Time to first token",
        "s",
        quantiles("gen_ai_server_time_to_first_token_seconds"),
        "From the moment the loaded model receives the request.",
    ),
    Panel(
        "Time per output token",
        "s",
        quantiles("gen_ai_server_time_per_output_token_seconds"),
        "Mean time between the tokens of an answer.",
    ),
    Panel(
        "Tokens per request",
        "short",
        tuple(
            Query(
                f"histogram_quantile(0.95, sum by (le, model) (rate(gen_ai_client_token_usage_bucket"
                f'{{{MODEL},gen_ai_token_type="{kind}"}}[{WINDOW}])))',
                f"{{{{model}}}} {kind} p95",
            )
            for kind in ("input", "output")
        ),
        "95th percentile of the length of prompts and answers.",
    ),
    Panel(
        "Batch size",
        "short",
        (
            Query(mean("allm_batch_sequences").expression, "{{model}} sequences"),
            Query(mean("allm_batch_tokens").expression, "{{model}} tokens"),
        ),
        "Mean per step.",
    ),
    Panel(
        "Key-value cache",
        "short",
        (
            total("allm_kv_cells_active", "{{model}} active"),
            total("allm_kv_cells_cached", "{{model}} cached"),
            total("allm_kv_cells_capacity", "threshold {{model}} capacity"),
        ),
        "Active cells belong to running requests; cached cells belong only to the prefix cache.",
    ),
    Panel(
        "Prefix cache hit rate",
        "percentunit",
        (
            Query(
                f"sum by (model) (rate(allm_cached_tokens_total{{{MODEL}}}[{WINDOW}])) / "
                f"(sum by (model) (rate(allm_prompt_tokens_total{{{MODEL}}}[{WINDOW}])) > 0)",
                "{{model}}",
            ),
        ),
        "Share of prompt tokens that the prefix cache supplies.",
    ),
    Panel(
        "Preempted requests",
        "ops",
        (rate("allm_requests_preempted_total", "model"),),
        "Requests per second that restart for lack of KV cells. If frequent, the cache is too small (ALLM_KV_TOKENS).",
    ),
    Panel(
        "Requests by operation",
        "reqps",
        (rate("gen_ai_server_request_duration_seconds_count", "gen_ai_operation_name", f"{MODEL},{TEXT_OPERATIONS}"),),
        "Chats, completions, embeddings and rerankings per second.",
    ),
)
AUDIO = (
    Panel(
        "Transcription speed",
        "short",
        (
            rate("allm_audio_seconds_total", "model", legend="{{model}} audio"),
            rate("allm_speech_seconds_total", "model", legend="{{model}} decoded"),
        ),
        "Seconds of audio transcribed per second, over all requests: the factor of real time.",
    ),
    Panel(
        "Time to first segment",
        "s",
        quantiles("allm_time_to_first_segment_seconds"),
        "From the moment the loaded model receives the request.",
    ),
    Panel("Windows per step", "short", (mean("allm_batch_windows"),), "Mean per step."),
    Panel(
        "Transcription duration",
        "s",
        quantiles("gen_ai_server_request_duration_seconds", f"{MODEL},{AUDIO_OPERATIONS}"),
        "From arrival to the last byte.",
    ),
)
IMAGE = (
    Panel(
        "Images",
        "short",
        (rate("allm_images_total", "model", legend="{{model}} images"),),
        "Images per second, without previews.",
    ),
    Panel(
        "Image steps",
        "ops",
        (rate("allm_image_steps_total", "model"),),
        "Denoising steps per second, counted for each image: the batch size times its steps.",
    ),
    Panel("Images per step", "short", (mean("allm_batch_images"),), "Mean per step."),
    Panel(
        "Time to first image",
        "s",
        quantiles("allm_time_to_first_image_seconds"),
        "From the moment the loaded model receives the request.",
    ),
    Panel(
        "Image request duration",
        "s",
        quantiles("gen_ai_server_request_duration_seconds", f"{MODEL},{IMAGE_OPERATIONS}"),
        "From arrival to the last byte.",
    ),
)
