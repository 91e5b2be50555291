"""Breaks that are no single value: another order, white space, template or reply."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from prefold.advisor import BreakKind

K = BreakKind

Chat: TypeAlias = Callable[..., str]
Pair: TypeAlias = tuple[str, str]
Make: TypeAlias = Callable[[int, random.Random, str, Chat], Pair]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    kind: BreakKind
    make: Make
    is_recut: bool = False


def _shuffled(dice: random.Random, entries: list[Any]) -> list[Any]:
    """Return the entries in another order, with another first one."""
    while True:
        found = dice.sample(entries, len(entries))
        if found[0] != entries[0]:
            return found


# -- order ---------------------------------------------------------------------------------

_SETTINGS: Mapping[int, dict[str, Any]] = {
    1: {"language": "English", "units": "metric", "max_days": 7, "fees": {"late": 2}},
    2: {"sprache": "Deutsch", "frist": 7, "unités": "mètres", "gebühr": [1, 2]},
    3: {"język": "polski", "birim": "metre", "上限": 7, "opłaty": {"późno": 2}},
}


def _keys(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    settings = _SETTINGS[form]
    orders = [list(settings), _shuffled(dice, list(settings))]
    values = [{key: settings[key] for key in order} for order in orders]
    if form == 1:
        texts = [json.dumps(value, indent=2) for value in values]
    elif form == 2:
        texts = [f"Kontext: {json.dumps(value, ensure_ascii=False)}" for value in values]
    else:
        texts = [f"ustawienia = {value!r}" for value in values]
    return chat(form, f"{body}{texts[0]}\n{body}"), chat(form, f"{body}{texts[1]}\n{body}")


_ENTRIES = {
    1: ["hammer drill", "folding ladder", "bench saw", "paint sprayer", "tile cutter"],
    2: ["Bohrhammer", "échelle pliante", "sierra de mesa", "Farbsprüher", "coupe-carreaux"],
    3: ["wiertarka", "katlanır merdiven", "丸のこ盤", "opryskiwacz", "карта плитки"],
}


def _list(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    orders = [_ENTRIES[form], _shuffled(dice, _ENTRIES[form])]
    if form == 1:
        texts = [f"Stock: {json.dumps(order)}" for order in orders]
    elif form == 2:
        rows = [[{"titel": each, "tage": 7} for each in order] for order in orders]
        texts = [json.dumps({"bestand": row}, ensure_ascii=False) for row in rows]
    else:
        texts = ["zbiór: {" + ", ".join(map(repr, order)) + "}" for order in orders]
    return chat(form, f"{body}{texts[0]}\n{body}"), chat(form, f"{body}{texts[1]}\n{body}")


_TOOL_NAMES = {
    1: [("find_tool", "Find a tool."), ("reserve", "Keep one."), ("fees", "Say the fees.")],
    2: [("suche", "Sucht etwas."), ("réserver", "Garde un outil."), ("cuota", "Dice.")],
    3: [("szukaj", "Szuka."), ("ayır", "Bir alet ayırır."), ("料金", "料金を言う。")],
}


def _tools(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    texts = []
    for order in (_TOOL_NAMES[form], _shuffled(dice, _TOOL_NAMES[form])):
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        if form == 2:
            tools: list[Any] = [
                {"name": name, "description": text, "input_schema": schema}
                for name, text in order
            ]
        else:
            tools = [
                {
                    "type": "function",
                    "function": {"name": name, "description": text, "parameters": schema},
                }
                for name, text in order
            ]
        shown = repr(tools) if form == 3 else json.dumps(tools, ensure_ascii=False)
        texts.append(chat(form, f"{body}# Tools\n{shown}\n{body}"))
    return texts[0], texts[1]


def _tools_apart(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    texts = []
    for order in (_TOOL_NAMES[form], _shuffled(dice, _TOOL_NAMES[form])):
        if form == 1:
            rows = [
                json.dumps(
                    {"type": "function", "function": {"name": name, "description": text}}
                )
                for name, text in order
            ]
            shown = "<tools>\n" + "\n".join(rows) + "\n</tools>"
        elif form == 2:
            rows = [
                f"// {text}\ntype {name} = (_: {{\nname: string,\n}}) => any;"
                for name, text in order
            ]
            shown = "namespace functions {\n\n" + "\n\n".join(rows) + "\n\n}"
        else:
            rows = [
                f"<tool_description>\n<nazwa>{name}</nazwa>\n<opis>{text}</opis>\n"
                f"</tool_description>"
                for name, text in order
            ]
            shown = "\n".join(rows)
        texts.append(chat(form, f"{body}{shown}\n{body}"))
    return texts[0], texts[1]


def _lines(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    texts = []
    for order in (_ENTRIES[form], _shuffled(dice, _ENTRIES[form])):
        if form == 1:
            rows = [f"- {each}, seven days at most" for each in order]
        elif form == 2:
            rows = [f"{number}. {each}, 7 Tage" for number, each in enumerate(order, 1)]
        else:
            rows = [f"・{each}: en fazla yedi gün" for each in order]
        texts.append(chat(form, body + "\n".join(rows) + f"\n\n{body}"))
    return texts[0], texts[1]


# -- white space ---------------------------------------------------------------------------


def _spaces(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    words = body.split(" ")
    place = dice.randrange(2, len(words) - 1)
    space = {1: "  ", 2: "\t", 3: "\u3000"}[form]
    other = " ".join(words[:place]) + space + " ".join(words[place:])
    return chat(form, body + body), chat(form, other + body)


def _line_ends(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    if form == 1:
        other = body.replace("\n", "\r\n")
    elif form == 2:
        other = body.replace("\n", "\n\n", 1)
    else:
        other = body.replace("\n", " " * dice.randrange(1, 4) + "\n")
    return chat(form, other + body), chat(form, body + body)


def _json_space(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    value = _SETTINGS[form]
    if form == 3:
        ours, theirs = json.dumps(value), json.dumps(value).replace("{", "{ ")
    else:
        ours = json.dumps(value, indent=4 if form == 1 else None)
        theirs = json.dumps(value, separators=(",", ":"))
    if dice.random() < 0.5:
        ours, theirs = theirs, ours
    return chat(form, f"{body}{ours}\n{body}"), chat(form, f"{body}{theirs}\n{body}")


# -- templates -----------------------------------------------------------------------------


def _marks(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    del dice
    asked = "?" + body[:40]
    ours = chat(form, body, asked)
    if form == 1:
        theirs = (
            f"<|start_header_id|>system<|end_header_id|>\n\n{body}<|eot_id|>"
            f"<|start_header_id|>user<|end_header_id|>\n\n{asked}<|eot_id|>"
        )
    elif form == 2:
        theirs = f"### Instruction:\n{body}\n### Human:\n{asked}\n\n### Response:\n"
    else:
        theirs = f"<bos>[INST] {body}\n\n{asked} [/INST]"
    return ours, theirs


_FIRST_LINES = {
    1: ("You are a helpful assistant.", "You are an expert clerk.", "Act as our desk."),
    2: ("Du bist ein Assistent.", "Tu es un employé.", "Eres el mostrador."),
    3: ("Jesteś pomocnikiem.", "Sen bir görevlisin.", "あなたは係員です。"),
}


def _first_line(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    one, other = dice.sample(_FIRST_LINES[form], 2)
    return chat(form, f"{one}\n{body}"), chat(form, f"{other}\n{body}")


# -- replies -------------------------------------------------------------------------------

_THOUGHTS = {
    1: "The rule says three days for a ladder, so I say that and nothing more.",
    2: "Die Regel nennt drei Tage für eine Leiter; das sage ich, et rien de plus.",
    3: "Zasada mówi o trzech dniach; bunu söylerim. それだけです。",
}
_REPLIES = {
    1: "A ladder may be kept for three days.",
    2: "Die Leiter darf drei Tage behalten werden.",
    3: "Drabinę można zatrzymać na trzy dni.",
}
_NEXT_TURN = {
    1: "<|im_end|>\n<|im_start|>user\nAnd the drill?<|im_end|>\n<|im_start|>assistant\n",
    2: "\n\n### User:\nUnd die Bohrmaschine?\n\n### Assistant:\n",
    3: "<end_of_turn>\n<start_of_turn>user\nA wiertarka?<end_of_turn>\n"
    "<start_of_turn>model\n",
}
_BLOCKS = {
    1: ["<think>\n{}\n</think>\n\n", "<thinking>{}</thinking>\n"],
    2: [
        "<reasoning>\n{}\n</reasoning>\n\n",
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>",
    ],
    3: ["<seed:think>{}</seed:think>", "◁think▷{}◁/think▷", "<düşünce>\n{}\n</düşünce>\n"],
}


def _reasoning(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    asked, reply = chat(form, body), _REPLIES[form]
    block = dice.choice(_BLOCKS[form]).format(_THOUGHTS[form])
    return f"{asked}{block}{reply}", f"{asked}{reply}{_NEXT_TURN[form]}"


_EMPTY = {
    1: "<think>\n\n</think>\n\n",
    2: "[THINK][/THINK]",
    3: "<|START_THINKING|><|END_THINKING|>",
}


def _empty_reasoning(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    del dice
    asked, reply = chat(form, body), _REPLIES[form]
    return f"{asked}{_EMPTY[form]}{reply}", f"{asked}{reply}{_NEXT_TURN[form]}"


def _recut(form: int, dice: random.Random, body: str, chat: Chat) -> Pair:
    del dice
    asked, reply = chat(form, body), _REPLIES[form]
    return f"{asked}{reply}", f"{asked}{reply}{_NEXT_TURN[form]}"


SHAPES: Mapping[str, Shape] = {
    "json_keys": Shape(kind=K.REORDERED_KEYS, make=_keys),
    "json_list": Shape(kind=K.REORDERED_LIST, make=_list),
    "tools": Shape(kind=K.REORDERED_TOOLS, make=_tools),
    "tools_apart": Shape(kind=K.REORDERED_TOOLS, make=_tools_apart),
    "lines": Shape(kind=K.REORDERED_LIST, make=_lines),
    "spaces": Shape(kind=K.WHITE_SPACE, make=_spaces),
    "line_ends": Shape(kind=K.WHITE_SPACE, make=_line_ends),
    "json_space": Shape(kind=K.WHITE_SPACE, make=_json_space),
    "marks": Shape(kind=K.TEMPLATE, make=_marks),
    "first_line": Shape(kind=K.TEMPLATE, make=_first_line),
    "reasoning": Shape(kind=K.REASONING, make=_reasoning),
    "empty_reasoning": Shape(kind=K.REASONING, make=_empty_reasoning),
    "recut": Shape(kind=K.TOKENS, make=_recut, is_recut=True),
}
