from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from pydantic import TypeAdapter
from transformers import PreTrainedTokenizerBase

from prefold.errors import RequestError
from prefold.server.chat_template import (
    ChatTemplate,
    Conversation,
    canonical,
    to_conversation,
)
from prefold.server.protocol_chat import Messages, Tools
from support.sessions import CHAT_TEMPLATE
from support.tiny_models import make_tokenizer

#: Prints tools as they come, as most templates do, and the calls of earlier replies.
TOOL_TEMPLATE = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function.name }}:"
    "{{ call.function.arguments | tojson }}</call>{% endfor %}</{{ m.role }}>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

#: Knows two roles and says nothing of any other.
SILENT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content | trim }}\n"
    "{% elif m.role == 'assistant' %}A:{{ m.content }}\n{% endif %}{% endfor %}A:"
)

STRICT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if m.content == 'quote' %}{{ raise_exception('bad: ' + m.content) }}{% endif %}"
    "{{ m.content }}{% endfor %}"
)

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Où? naïve "quoted"',
        "parameters": {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "city": {"type": "string", "minLength": 1, "default": None},
            },
            "required": ["unit", "city"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "parameters": {}}}


def tokenizer_with(template: str | None) -> PreTrainedTokenizerBase:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def read(messages: list[dict[str, Any]], tools: list[Any] | None = None) -> Conversation:
    """Return a conversation as it comes out of a request's JSON text."""
    return to_conversation(
        TypeAdapter(Messages).validate_python(json.loads(json.dumps(messages))),
        None
        if tools is None
        else TypeAdapter(Tools).validate_python(json.loads(json.dumps(tools))),
    )


def user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def render(template: str, *conversation: Any) -> str:
    return ChatTemplate(tokenizer_with(template)).render(read(*conversation))


def refusal(template: str | None, *conversation: Any) -> str:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(tokenizer_with(template)).encode(read(*conversation))
    return str(caught.value)


def shuffled(value: Any, seed: int) -> Any:
    """Return an equal value whose objects list their keys in another order."""
    draw = random.Random(seed)  # noqa: S311 -- any order will do

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if not isinstance(value, dict):
            return value
        keys = list(value)
        draw.shuffle(keys)
        return {key: walk(value[key]) for key in keys}

    return walk(value)


def test_a_conversation_becomes_the_tokens_of_its_text() -> None:
    tokenizer = tokenizer_with(CHAT_TEMPLATE)
    messages = [{"role": "system", "content": "be brief"}, user("the <|end|> of it")]
    template = ChatTemplate(tokenizer)
    text = template.render(read(messages))
    assert text == "<system>\nbe brief\n<user>\nthe <|end|> of it\n<assistant>\n"
    assert template.encode(read(messages)) == tokenizer.encode(text)


def test_the_order_of_keys_and_whitespace_change_nothing() -> None:
    messages = [user("what is it like?")]
    reference = render(TOOL_TEMPLATE, messages, [WEATHER, TIME])
    assert "get_weather" in reference
    for seed in range(40):
        tools = [shuffled(WEATHER, seed), shuffled(TIME, seed)]
        assert render(TOOL_TEMPLATE, messages, tools) == reference
    for indent, ascii_only in itertools.product((None, 1, 7), (True, False)):
        text = json.dumps([WEATHER, TIME], indent=indent, ensure_ascii=ascii_only)
        assert render(TOOL_TEMPLATE, messages, json.loads(text)) == reference


def test_what_has_a_meaning_is_kept_apart() -> None:
    def text(*tools: Any) -> str:
        return render(TOOL_TEMPLATE, [user("x")], list(tools))

    def with_default(value: object) -> Any:
        parameters = {"properties": {"n": {"default": value}}}
        return {"type": "function", "function": {"name": "f", "parameters": parameters}}

    texts = [text(WEATHER, TIME), text(TIME, WEATHER), text(WEATHER)]
    texts += [
        text(with_default(value)) for value in (1, 1.0, "1", True, None, [1, 2], [2, 1])
    ]
    assert len(set(texts)) == len(texts)


def test_lists_keep_their_order_at_every_level() -> None:
    value = {"b": [{"d": 1, "c": 2}, "z", "a"], "a": {"y": [3, 1], "x": None}}
    assert json.dumps(canonical(value)) == (
        '{"a": {"x": null, "y": [3, 1]}, "b": [{"c": 2, "d": 1}, "z", "a"]}'
    )


def test_the_flag_for_strictness_is_not_for_the_model() -> None:
    plain = {"type": "function", "function": {"name": "f"}}
    flagged = {"type": "function", "function": {"name": "f", "strict": False}}
    assert render(TOOL_TEMPLATE, [user("x")], [flagged]) == render(
        TOOL_TEMPLATE, [user("x")], [plain]
    )


def test_no_tools_are_the_same_as_none() -> None:
    assert render(TOOL_TEMPLATE, [user("x")], []) == render(TOOL_TEMPLATE, [user("x")])


def test_parts_of_text_are_joined_by_lines() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    message = {"role": "user", "content": parts}
    assert render(CHAT_TEMPLATE, [message]) == render(CHAT_TEMPLATE, [user("one\ntwo")])


def test_earlier_calls_are_given_as_objects() -> None:
    def text(arguments: str) -> str:
        call = {
            "id": "c1",
            "type": "function",
            "function": {"name": "f", "arguments": arguments},
        }
        messages = [
            user("x"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "5"},
        ]
        return render(TOOL_TEMPLATE, messages)

    assert '<call>f:{"b": 1, "a": 2}</call>' in text('{"b":1,   "a":2}')
    assert '<call>f:"[1"</call>' in text("[1")
    assert '<call>f:"7"</call>' in text("7")
    # Deeper than Python's reader goes.
    assert "<call>f:" in text("[" * 100_000)


def test_a_system_message_stays_where_it_is() -> None:
    messages = [user("a"), {"role": "system", "content": "s"}, user("b")]
    assert render(CHAT_TEMPLATE, messages) == (
        "<user>\na\n<system>\ns\n<user>\nb\n<assistant>\n"
    )


@pytest.mark.parametrize("role", ["system", "developer", "tool"])
def test_a_message_that_a_template_leaves_out_is_refused(role: str) -> None:
    message = {"role": role, "content": "important"}
    if role == "tool":
        message["tool_call_id"] = "c1"
    for messages in ([message, user("hello")], [user("hello"), message], [message]):
        text = refusal(SILENT_TEMPLATE, messages)
        assert repr(role) in text
        assert "important" not in text


def test_an_empty_message_cannot_be_left_out() -> None:
    messages = [{"role": "system", "content": " "}, user("hello")]
    assert render(SILENT_TEMPLATE, messages) == "U:hello\nA:"


def test_a_message_that_a_template_rewrites_is_not_left_out() -> None:
    template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    messages = [{"role": "system", "content": "abc"}, user("d")]
    assert render(template, messages) == "ABCD"


def test_a_message_that_is_printed_as_json_is_not_left_out() -> None:
    template = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
    messages = [{"role": "developer", "content": 'a "quoted" line\n'}, user("d")]
    assert "quoted" in render(template, messages)


def test_tools_without_a_place_are_refused() -> None:
    text = refusal(CHAT_TEMPLATE, [user("get_weather")], [WEATHER])
    assert "no place for tools" in text


def test_a_template_may_say_why_it_refuses() -> None:
    text = refusal(STRICT_TEMPLATE, [{"role": "system", "content": "s"}, user("x")])
    assert "System role not supported" in text


def test_a_template_may_not_quote_the_conversation() -> None:
    text = refusal(STRICT_TEMPLATE, [user("quote")])
    assert "quote" not in text
    assert "refuses" in text


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[7].content }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].content | fromjson }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].nothing.at.all }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{% for x in range(99999999999) %}{% endfor %}",
        "{{ undefined_function(1) }}",
        "{{ messages[0]['content'].index('zzz') }}",
    ],
)
def test_a_fault_of_a_template_is_a_sentence(template: str) -> None:
    text = refusal(template, [user("a canary")])
    assert "chat template" in text
    assert "canary" not in text


def test_a_model_without_a_template_says_what_to_use() -> None:
    assert "/v1/completions" in refusal(None, [user("x")])


def test_half_a_surrogate_pair_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": "\ud800"}}}
    assert "surrogate" in refusal(TOOL_TEMPLATE, [user("x")], [tool])


def test_a_number_that_json_does_not_have_is_refused() -> None:
    parameters = {"a": float("inf")}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert "finite" in refusal(TOOL_TEMPLATE, [user("x")], [tool])


def test_a_reply_of_nothing_is_refused() -> None:
    assert "messages[1]" in refusal(CHAT_TEMPLATE, [user("x"), {"role": "assistant"}])


def test_nothing_said_is_shown() -> None:
    assert "canary" not in repr(read([user("a canary")], [WEATHER]))


def test_what_others_say_does_not_stand_in_for_a_message_left_out() -> None:
    for content in ("no", "ban", "hello"):
        messages = [{"role": "system", "content": content}, user("hello, do not ban")]
        assert "messages[0]" in refusal(SILENT_TEMPLATE, messages)


def test_a_template_that_shows_only_the_last_message_is_refused() -> None:
    messages = [user("first"), {"role": "assistant", "content": "answer"}, user("last")]
    text = refusal("{{ messages[-1]['content'] }}", messages)
    assert "messages[0], of the role 'user'" in text


def test_tools_may_have_a_place_in_some_conversations_only() -> None:
    template = (
        "{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    model = ChatTemplate(tokenizer_with(template))
    messages = [{"role": "system", "content": "s"}, user("x")]
    for _ in range(2):
        # Whatever was seen before, and whichever of them was there before.
        assert "get_time" in model.render(read(messages, [WEATHER, TIME]))
        with pytest.raises(RequestError, match="no place for tools in this conversation"):
            model.render(read(messages[1:], [WEATHER, TIME]))


def test_calls_that_a_template_leaves_out_are_refused() -> None:
    function = {"name": "f", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function}
    for content in (None, "I will call f"):
        reply = {"role": "assistant", "content": content, "tool_calls": [call]}
        assert "leaves out the calls of messages[1]" in refusal(
            CHAT_TEMPLATE, [user("x"), reply]
        )


def test_a_template_that_wants_certain_words_is_believed() -> None:
    template = (
        "{% if messages[0].content != 'open' %}{{ raise_exception('no') }}{% endif %}sesame"
    )
    assert render(template, [user("open")]) == "sesame"


def test_arguments_are_read_as_far_as_is_quick() -> None:
    def reply(arguments: list[str]) -> dict[str, Any]:
        calls = [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
            for text in arguments
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    large = '{"a":[' + "[]," * 40_000 + "0]}"
    # One too large to be read stays the text it is.
    text = render(TOOL_TEMPLATE, [user("x"), reply([large, '{"b": 1}'])])
    assert r'<call>f:"{\"a\"' in text
    assert '<call>f:{"b": 1}</call>' in text
    half = large[:60_000] + "0]}"
    refused = refusal(TOOL_TEMPLATE, [user("x"), reply([half] * 8)])
    assert "send fewer calls" in refused
