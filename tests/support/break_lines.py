"""Lines with a value that changes from request to request, in three surface forms."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

Line: TypeAlias = Callable[[Any], str]

_MONTHS = {
    "en": "January February March April May June July August September October November "
    "December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November "
    "Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre "
    "décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre "
    "diciembre",
    "pl": "stycznia lutego marca kwietnia maja czerwca lipca sierpnia września "
    "października listopada grudnia",
    "tr": "Ocak Şubat Mart Nisan Mayıs Haziran Temmuz Ağustos Eylül Ekim Kasım Aralık",
    "ru": "января февраля марта апреля мая июня июля августа сентября октября ноября "
    "декабря",
    "hu": "január február március április május június július augusztus szeptember október "
    "november december",
}
_WEEK = {
    "en": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "de": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    "fr": "lundi mardi mercredi jeudi vendredi samedi dimanche",
    "pl": "poniedziałek wtorek środa czwartek piątek sobota niedziela",
    "tr": "Pazartesi Salı Çarşamba Perşembe Cuma Cumartesi Pazar",
    "ja": "月曜日 火曜日 水曜日 木曜日 金曜日 土曜日 日曜日",
}


def _month(at: datetime, language: str) -> str:
    return _MONTHS[language].split()[at.month - 1]


def _weekday(at: datetime, language: str) -> str:
    return _WEEK[language].split()[at.weekday()]


_MIXED = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def _in_base(number: int, digits: str, length: int) -> str:
    letters = []
    for _ in range(length):
        number, rest = divmod(number, len(digits))
        letters.append(digits[rest])
    return "".join(letters)


def _mixed(number: int, length: int) -> str:
    # As such ids nearly always are: with both letters and digits among the first.
    return _in_base(number, _MIXED[10:], 2) + _in_base(number, _MIXED, length - 4) + "7q"


def _hex(number: int, length: int) -> str:
    return f"{number:032x}"[: length - 2] + "a7"


def _digits(number: int, length: int) -> str:
    return "4" + f"{number:039d}"[: length - 1]


def _uuid(number: int) -> str:
    return str(uuid.UUID(int=number))


LINES: Mapping[str, Mapping[int, Sequence[Line]]] = {
    "clock_seconds": {
        1: [
            lambda at: f"It is now {at:%H:%M:%S}.",
            lambda at: f"Current time: {at:%I:%M:%S %p}",
        ],
        2: [
            lambda at: f"Es ist jetzt {at:%H:%M:%S} Uhr.",
            lambda at: f"Heure : {at:%H}h{at:%M}m{at:%S}s",
        ],
        3: [
            lambda at: f"Jest godzina {at:%H:%M:%S}.",
            lambda at: f"現在時刻は{at.hour}時{at.minute}分{at.second}秒です。",
            lambda at: f"Şu an saat {at:%H.%M.%S}",
        ],
    },
    "clock_minutes": {
        1: [
            lambda at: f"The time is {at:%H:%M}.",
            lambda at: f"Local time {at.hour % 12 or 12}:{at:%M} {at:%p}",
        ],
        2: [
            lambda at: f"Uhrzeit: {at:%H:%M}",
            lambda at: f"Il est {at.hour}h{at:%M}.",
        ],
        3: [
            lambda at: f"Aktualna godzina to {at:%H:%M}.",
            lambda at: f"मौजूदा समय {at:%H:%M} है।",
            lambda at: f"Kello on nyt {at.hour}.{at:%M}.",
        ],
    },
    "date_and_time": {
        1: [
            lambda at: f"Timestamp: {at:%Y-%m-%dT%H:%M:%SZ}",
            lambda at: f"[{at:%Y-%m-%d %H:%M:%S}] session start",
        ],
        2: [
            lambda at: f"Stand: {at:%d.%m.%Y, %H:%M:%S} Uhr",
            lambda at: f"Généré le {at:%d/%m/%Y à %H:%M:%S}",
        ],
        3: [
            lambda at: f"Wygenerowano {at:%Y/%m/%d %H:%M:%S} CET",
            lambda at: f"Oluşturma: {at:%Y%m%dT%H%M%SZ}",
            lambda at: f"生成日時:{at:%Y-%m-%dT%H:%M:%S}+09:00",
        ],
    },
    "time_stamp": {
        1: [
            lambda at: f"ts={int(at.timestamp())}",
            lambda at: f"Unix time {int(at.timestamp())} is when this was asked.",
        ],
        2: [
            lambda at: f'{{"zeit": {int(at.timestamp() * 1000)}}}',
            lambda at: f"horodatage {int(at.timestamp() * 1000)}",
        ],
        3: [
            lambda at: f"znacznik czasu: {at.timestamp():.3f}",
            lambda at: f"epoch_us={int(at.timestamp() * 1e6)}",
        ],
    },
    "date_numeric": {
        1: [
            lambda at: f"Today's date: {at:%Y-%m-%d}",
            lambda at: f"The date is {at:%m/%d/%Y}.",
        ],
        2: [
            lambda at: f"Heute ist der {at:%d.%m.%Y}.",
            lambda at: f"Date du jour : {at:%d/%m/%Y}",
        ],
        3: [
            lambda at: f"今日は{at.year}年{at.month}月{at.day}日です。",
            lambda at: f"Dzisiejsza data: {at:%d-%m-%Y}",
            lambda at: f"Mai dátum: {at.year}. {at.month:02}. {at.day:02}.",
        ],
    },
    "date_in_words": {
        1: [
            lambda at: f"Today is {_month(at, 'en')} {at.day}, {at.year}.",
            lambda at: f"Current date: {at.day} {_month(at, 'en')} {at.year}",
        ],
        2: [
            lambda at: f"Heute ist der {at.day}. {_month(at, 'de')} {at.year}.",
            lambda at: f"Nous sommes le {at.day} {_month(at, 'fr')} {at.year}.",
            lambda at: f"Hoy es {at.day} de {_month(at, 'es')} de {at.year}.",
        ],
        3: [
            lambda at: f"Dziś jest {at.day} {_month(at, 'pl')} {at.year} r.",
            lambda at: f"Bugünün tarihi {at.day} {_month(at, 'tr')} {at.year}.",
            lambda at: f"Сегодня {at.day} {_month(at, 'ru')} {at.year} г.",
            lambda at: f"Ma {at.year}. {_month(at, 'hu')} {at.day}. van.",
        ],
    },
    "weekday": {
        1: [lambda at: f"It is {_weekday(at, 'en')}, and the house is open."],
        2: [
            lambda at: f"Heute ist {_weekday(at, 'de')}.",
            lambda at: f"Nous sommes {_weekday(at, 'fr')}.",
        ],
        3: [
            lambda at: f"Dziś jest {_weekday(at, 'pl')}.",
            lambda at: f"Bugün günlerden {_weekday(at, 'tr')}.",
            lambda at: f"今日は{_weekday(at, 'ja')}です。",
        ],
    },
    "uuid": {
        1: [
            lambda number: f"Conversation {_uuid(number)} with a member.",
            lambda number: f"session_id: {_uuid(number)}",
        ],
        2: [
            lambda number: f"Vorgang {_uuid(number).upper()} ist offen.",
            lambda number: f"Réf. urn:uuid:{_uuid(number)}",
        ],
        3: [
            lambda number: f"Identyfikator {{{_uuid(number).upper()}}} rozmowy",
            lambda number: f"会話ID「{_uuid(number)}」の続き",
        ],
    },
    "uuid_in_json": {
        1: [lambda number: f'{{"trace_id": "{_uuid(number)}", "level": 2}}'],
        2: [lambda number: f"<kontext id='{_uuid(number)}' sprache='de'/>"],
        3: [lambda number: f"śledzenie: !id {_uuid(number)} # wewnętrzne"],
    },
    "counter": {
        1: [
            lambda number: f"Request #{number} of this member.",
            lambda number: f"This is message {number} in the conversation.",
        ],
        2: [
            lambda number: f"Anfrage Nr. {number} an die Ausleihe.",
            lambda number: f"Requête n° {number} du service.",
        ],
        3: [
            lambda number: f"Zapytanie nr {number} do wypożyczalni.",
            lambda number: f"Запрос № {number} от члена клуба.",
            lambda number: f"第{number}回の質問です。",
        ],
    },
    "turn": {
        1: [
            lambda number: f"Turn {number} of 20",
            lambda number: f"[step {number}/20] go on",
        ],
        2: [
            lambda number: f"Schritt {number} von 20",
            lambda number: f"Étape {number} sur 20.",
        ],
        3: [
            lambda number: f"Tura {number} z 20",
            lambda number: f"Adım {number}/20, devam",
            lambda number: f"ターン{number}/20",
        ],
    },
    "random_hex": {
        1: [
            lambda number: f"Session {_hex(number, 16)} is open.",
            lambda number: f"build {_hex(number, 10)}, do not mention it",
        ],
        2: [
            lambda number: f"Sitzung {_hex(number, 24).upper()} läuft.",
            lambda number: f"clé={_hex(number, 32)}",
        ],
        3: [
            lambda number: f"Sesja 0x{_hex(number, 12)} trwa.",
            lambda number: f"セッション {_hex(number, 20)} を継続",
        ],
    },
    "random_mixed": {
        1: [
            lambda number: f"id {_mixed(number, 14)}.",
            lambda number: f"req_{_mixed(number, 18)} by the front desk",
        ],
        2: [
            lambda number: f"Kennung: {_mixed(number, 21)}",
            lambda number: f"jeton «{_mixed(number, 16)}» à usage unique",
        ],
        3: [
            lambda number: f"Numer {_in_base(number, _CROCKFORD, 26)} sprawy",
            lambda number: f"İşlem ord-{_mixed(number, 27)} açık",
            lambda number: f"注文{_in_base(number, _CROCKFORD, 12)}の件",
        ],
    },
    "random_digits": {
        1: [
            lambda number: f"Conversation id: {_digits(number, 18)}",
            lambda number: f"Thread {_digits(number, 12)} goes on.",
        ],
        2: [
            lambda number: f"Vorgangsnummer {_digits(number, 16)}",
            lambda number: f"dossier {_digits(number, 14)}, suite",
        ],
        3: [
            lambda number: f"Sprawa {_digits(number, 19)} w toku.",
            lambda number: f"İşlem no: {_digits(number, 13)}",
        ],
    },
}
