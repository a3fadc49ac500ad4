"""The scores of known benchmarks for one answer, from 0 to 1, as their makers compute them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBER_WORDS = {"none": "0", **{word: str(i) for i, word in enumerate(NUMBERS)}}
ARTICLES = ("a", "an", "the")
SIGNS = ';/[]"{}()=+\\_-><@`,?!'
#: Words that VQA's evaluation reads with their apostrophes, however many of these an answer leaves out.
CONTRACTIONS = re.findall(
    r"\S+",
    """ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't
he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am mightn't mightn't've might've mustn't must've
needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll
somebody's someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd
there'd've there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll
what're what's what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
would've wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've""",
)


def _without_apostrophes(word: str) -> list[str]:
    """A word without one of its apostrophes, and without any."""
    places = [i for i, sign in enumerate(word) if sign == "'"]
    return [word[:i] + word[i + 1 :] for i in places] + [word.replace("'", "")]


APOSTROPHES = {short: word for word in CONTRACTIONS for short in _without_apostrophes(word)}


def normalize_vqa(text: str) -> str:
    """An answer as the VQA evaluation compares it: no punctuation and articles, digits for number words.

    >>> normalize_vqa("The two dogs, dont you see?")
    "2 dogs don't you see"
    """
    text = text.lower().replace(",", "").replace("?", "").replace("'s", " 's").strip()
    given = text.replace("\n", " ").replace("\t", " ").strip()
    cleaned = given
    for sign in SIGNS:
        beside_space = f"{sign} " in given or f" {sign}" in given
        cleaned = cleaned.replace(sign, "" if beside_space else " ")
    cleaned = re.sub(r"\.(?!\d)", "", cleaned)
    words = [NUMBER_WORDS.get(word, word) for word in cleaned.split()]
    return " ".join(APOSTROPHES.get(word, word) for word in words if word not in ARTICLES)


def vqa_score(text: str, answers: Sequence[str]) -> float:
    """VQA's soft accuracy: the mean, over the people who answered, of min(1, how many of the others said so / 3).

    >>> vqa_score("red", ["red"] * 2 + ["blue"] * 8), vqa_score("red", ["red"] * 4 + ["blue"] * 6)
    (0.6, 1.0)
    """
    said, found = normalize_vqa(text), [normalize_vqa(answer) for answer in answers]
    same = [answer == said for answer in found]
    scores = [min(1.0, (sum(same) - one) / 3) for one in same]
    return round(sum(scores) / len(scores), 12)


def relaxed_score(text: str, answers: Sequence[str]) -> float:
    """ChartQA's relaxed accuracy: a number may be off by 5 %, words must be the same.

    >>> relaxed_score("10.4", ["10"]), relaxed_score("10.6", ["10"]), relaxed_score("Asia", ["asia"])
    (1.0, 0.0, 1.0)
    """
    return float(any(_is_near(text.strip(), answer.strip()) for answer in answers))


def _is_near(text: str, answer: str) -> bool:
    said, true = _as_number(text), _as_number(answer)
    if said is not None and true:
        return abs(said - true) / abs(true) <= 0.05
    return text.lower() == answer.lower()


def _as_number(text: str) -> float | None:
    try:
        return float(text.rstrip("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        return None


def yes_no_score(text: str, answers: Sequence[str]) -> float:
    """Whether yes or no was said, by how an answer begins, as MME's evaluation reads it.

    >>> yes_no_score("Yes, there is.", ["yes"]), yes_no_score("I do not know", ["no"])
    (1.0, 0.0)
    """
    return float(read_yes_no(text) == answers[0].strip().lower())


def read_yes_no(text: str) -> str:
    """ "yes", "no" or "other".

    >>> read_yes_no("N"), read_yes_no("No."), read_yes_no("maybe")
    ('no', 'no', 'other')
    """
    said = text.lower().strip().replace(".", "")
    if said in ("y", "n"):
        return {"y": "yes", "n": "no"}[said]
    begin = said if said in ("yes", "no") else said[:4]
    return "yes" if "yes" in begin else "no" if "no" in begin and len(said) > 1 else "other"


def pope_score(text: str, answers: Sequence[str]) -> float:
    """Whether the answer is that word, "yes" or "no", and nothing else.

    >>> pope_score("Yes", ["yes"]), pope_score("Yes, there is.", ["yes"])
    (1.0, 0.0)
    """
    return float(text.lower().strip() == answers[0].lower().strip())


def letter_score(text: str, answers: Sequence[str]) -> float:
    """Whether the letter of the right option was said, alone or before a dot, as LLaVA reads ScienceQA.

    >>> letter_score("b", ["B"]), letter_score("B. a dog", ["B"]), letter_score("a dog", ["B"])
    (1.0, 1.0, 0.0)
    """
    said, right = text.strip(), answers[0].lower()
    if said.lower() == right:
        return 1.0
    return float(len(said) >= 2 and said[0].isupper() and said[1] == "." and said[0].lower() == right)


def gqa_score(text: str, answers: Sequence[str]) -> float:
    """Whether the answer is the true one, whatever its case and punctuation.

    >>> gqa_score("Left.", ["left"])
    1.0
    """

    def words(one: str) -> str:
        return re.sub(r"[^\w\s]|_", "", one.lower()).strip()

    return float(words(text) == words(answers[0]))


def anls_score(text: str, answers: Sequence[str]) -> float:
    """Average normalized Levenshtein similarity, as DocVQA has it: 0 where less than half of the signs are right.

    >>> anls_score("paris", ["Paris"]), anls_score("pariss", ["paris"]) > 0.8, anls_score("x", ["paris"])
    (1.0, True, 0.0)
    """
    best = 0.0
    for answer in answers:
        said, true = (" ".join(one.lower().split()) for one in (text, answer))
        longest = max(len(said), len(true))
        best = max(best, 1 - _edits(said, true) / longest if longest else 1.0)
    return best if best >= 0.5 else 0.0


def _edits(a: str, b: str) -> int:
    """The Levenshtein distance."""
    row = list(range(len(b) + 1))
    for i, sign in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (sign != other))
    return row[-1]


#: By rule: how an answer is scored.
RULES: dict[str, Callable[[str, Sequence[str]], float]] = {
    "vqa": vqa_score,
    "relaxed": relaxed_score,
    "mme": yes_no_score,
    "pope": pope_score,
    "letter": letter_score,
    "gqa": gqa_score,
    "anls": anls_score,
}
