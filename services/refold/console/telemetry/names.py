"""Names of spans and attributes: OpenTelemetry's conventions for generative AI, and our own. All `gen_ai.*` are in
development there and may change, so they are exported on request alone. **Source**:
open-telemetry/semantic-conventions-genai at e8fc5751506258db1459d1bde47994e01dee922e, `model/gen-ai/registry.yaml`."""

from collections.abc import Mapping

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions that attributes without a prefix of ours have."""
OPT_IN, OPTED_IN = "OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental"

OPERATION = "gen_ai.operation.name"
CHAT, EXECUTE_TOOL, INVOKE_AGENT, INVOKE_WORKFLOW = "chat", "execute_tool", "invoke_agent", "invoke_workflow"
PROVIDER, REQUEST_MODEL, RESPONSE_MODEL = "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model"
AGENT_NAME, AGENT_VERSION = "gen_ai.agent.name", "gen_ai.agent.version"
WORKFLOW_NAME, CONVERSATION = "gen_ai.workflow.name", "gen_ai.conversation.id"
TOOL_NAME, TOOL_CALL, TOOL_TYPE = "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"
TOOL_ARGUMENTS, TOOL_RESULT = "gen_ai.tool.call.arguments", "gen_ai.tool.call.result"
ERROR_TYPE = "error.type"

TOKENS: Mapping[str, str] = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cache_read_tokens": "gen_ai.usage.cache_read.input_tokens",
    "cache_write_tokens": "gen_ai.usage.cache_creation.input_tokens",
}
"""Attributes by the names of usage in results."""

PROVIDERS: Mapping[str, str] = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "google-cloud": "gcp.vertex_ai",
    "grok": "x_ai",
    "xai": "x_ai",
    "mistral": "mistral_ai",
}
"""Providers with another name in results."""

SPAN_RUN, STEP, ATTEMPT, EFFECT = "refold.run.id", "refold.step", "refold.attempt", "refold.effect"
OUTCOME, TOOK = "refold.outcome", "refold.took_seconds"
"""Outcome of an attempt, and the time that the tool's code ran, by its executor's clock."""
REASON = "refold.reason"
"""Detail of an event: the awaited thing, people's verdict, or the kind of a note."""
