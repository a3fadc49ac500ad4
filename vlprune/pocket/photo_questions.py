"""Questions about photographs, made from what people wrote about them: five captions for each photograph.

Captions name things, colours, numbers and actions. A thing is *present* if a caption names it, *unsure* if a caption
uses a word that may mean it ("animal" may mean a dog), and taken as absent if neither. Absent things to ask about are
drawn as in POPE (Li et al., 2023): the popular ones, and those that often come with what is there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random


def _split(text: str) -> list[str]:
    return text.split()


#: Each thing: the words that name it, and after the bar words that leave it open whether it is there.
_THINGS = """
person: person people man men woman women boy boys girl girls child children kid kids lady guy guys baby | player
man: man men guy guys gentleman | person people male adult couple player players crowd rider biker climber surfer
woman: woman women lady ladies | person people female adult adults couple crowd girl girls player players
boy: boy boys | child children kid kids toddler baby person people man guy player players
girl: girl girls | child children kid kids toddler baby person people woman lady player players
child: child children kid kids toddler toddlers boy boys girl girls | baby people person
baby: baby babies infant | toddler child
dog: dog dogs puppy puppies greyhound greyhounds | animal animals
cat: cat cats kitten | animal animals
horse: horse horses pony | animal animals rider
cow: cow cows bull | animal animals
sheep: sheep | animal animals
bird: bird birds duck ducks seagull seagulls pigeons pigeon | animal animals
crowd: crowd crowds audience spectators onlookers | people group
grass: grass lawn | grassy field yard park
water: water ocean lake river pool sea pond stream | wave waves beach shore surf swimming swims puddle fountain
snow: snow | snowy ice winter ski skier skiing snowboarder
sand: sand | beach sandy shore
ice: ice | snow hockey snowy
mud: mud | muddy dirt
beach: beach beaches shore | ocean sandy sand
street: street streets road | sidewalk city
mountain: mountain mountains | hill hills cliff
rock: rock rocks boulder boulders | rocky cliff stone stones
tree: tree trees | woods forest wooded
field: field fields | grass grassy
building: building buildings house | city store
wall: wall walls | brick building
fence: fence fences | fenced railing rail
bridge: bridge | overpass
stairs: stairs steps staircase | stair
table: table tables | desk
chair: chair chairs | bench couch seat
bench: bench benches | seat chair
couch: couch sofa | chair
bed: bed | couch
door: door doorway doors | entrance
window: window windows | glass
car: car cars | vehicle truck
truck: truck trucks | car vehicle
motorcycle: motorcycle motorcycles motorbike | bike bikes motocross dirt
bicycle: bike bikes bicycle bicycles bmx | biker cyclist bicyclist rider motorcycle cycling
boat: boat boats canoe kayak | raft
skateboard: skateboard skateboards skateboarder | skateboarding board
snowboard: snowboard snowboards snowboarder | snowboarding board
surfboard: surfboard surfboards surfer | surfing board
skis: skis ski skier skiers | skiing
ramp: ramp ramps | jump
swing: swing swings | swinging
slide: slide slides | playground sliding
trampoline: trampoline | jumping
tent: tent tents | camp
fountain: fountain | water
wave: wave waves | surfer surfing ocean surf
ball: ball balls football basketball baseball soccer tennis volleyball | toy game object
frisbee: frisbee frisbees | disc
toy: toy toys | ball frisbee doll
stick: stick sticks branch | pole
rope: rope ropes | leash
leash: leash | rope
collar: collar | leash
helmet: helmet helmets | hat biker motorcycle football rider bicyclist
hat: hat hats cap caps | helmet
glasses: glasses eyeglasses sunglasses goggles | mask
shirt: shirt shirts tshirt | top clothes jersey
jacket: jacket jackets coat coats | vest
pants: pants jeans trousers | clothes
shorts: shorts | trunks
dress: dress dresses gown | skirt
skirt: skirt skirts | dress
sweater: sweater sweatshirt hoodie | jacket
scarf: scarf | clothes
gloves: glove gloves | mitt
shoes: shoes shoe boots sneakers | sandals
costume: costume costumes | outfit
uniform: uniform uniforms jersey jerseys | shirt player players
swimsuit: swimsuit bikini bathing trunks | wetsuit
backpack: backpack backpacks | bag pack
bag: bag bags purse | backpack
umbrella: umbrella umbrellas | parasol
bottle: bottle bottles | drink drinking
cup: cup mug | drink drinking
food: food | eating eats
book: book books | reading magazine
paper: paper papers | newspaper book
phone: phone cellphone | cell
camera: camera cameras | photo picture photographer
guitar: guitar guitars | instrument
microphone: microphone | singing
sign: sign signs | poster
balloon: balloon balloons | party
flower: flower flowers | garden
bubbles: bubble bubbles | soap
"""
SMALL_THINGS = frozenset(
    _split(
        "ball frisbee toy stick rope leash collar helmet hat glasses scarf gloves shoes backpack bag umbrella "
        "bottle cup food book paper phone camera guitar microphone sign balloon flower bubbles bird "
        "skateboard surfboard snowboard swing skis "
    )
)
_NO_ARTICLE = frozenset(
    _split("grass water snow sand ice mud food paper stairs skis glasses pants shorts gloves shoes bubbles sheep")
)
_PLURAL = frozenset(_split("stairs skis glasses pants shorts gloves shoes bubbles"))
COLOURS = _split("black white red blue green yellow orange brown pink purple gray")
_COLOUR_WORDS = {colour: colour for colour in COLOURS} | {"grey": "gray", "tan": "brown", "golden": "yellow"}
_COLOURED = frozenset(
    _split(
        "dog shirt jacket dress hat shorts ball pants helmet car bicycle uniform sweater skirt boat bird horse "
        "collar toy swimsuit frisbee slide surfboard shoes rope bag backpack flower motorcycle glasses scarf bench "
        "chair leash truck tent umbrella"
    )
)
_COUNTED = frozenset(_split("person man woman boy girl child dog bird horse car boat"))
_NUMBER_WORDS = {"two": "two", "three": "three", "four": "four", "five": "five"}
_ONE = frozenset(_split("a an one the"))
#: Each action: the words that name it in a caption, the first of which is the answer.
_ACTIONS = """running run runs|jumping jump jumps leaping leaps|playing play plays|walking walk walks
standing stand stands|sitting sit sits seated|riding ride rides|climbing climb climbs
swimming swim swims|holding hold holds|looking look looks|wearing|catching catch catches
throwing throw throws|smiling smile smiles|skiing|surfing surf surfs|skateboarding
sliding slides|swinging swings|laying lying lies|sleeping sleeps|eating eat eats
drinking drinks|talking talk talks|posing pose poses|carrying carry carries|pulling pull pulls
pushing push pushes|digging digs|chasing chase chases|fighting fight fights
dancing dance dances|singing sings|reading reads|kicking kick kicks|hitting hits
laughing laugh laughs|splashing splashes|fishing|performing performs|snowboarding
racing race races|biting bites|crawling crawls"""
_IGNORED_ACTIONS = frozenset(["wearing", "holding", "looking"])  # said of nearly anybody
#: Words that are drawn on photographs to be read.
WORDS = _split(
    "apple bread candle dance eagle flame garden house island jungle kettle lemon market needle orange planet queen "
    "river silver tiger uncle violet window yellow zebra bank coat desk east farm gold hill iron king lamp moon nest "
    "open park rain salt time unit west year zone bus cup ear fox hat ink key map oil pen sky tea van box exit stop"
)
CARD_COLOURS = {
    "red": (200, 30, 30),
    "green": (20, 130, 50),
    "blue": (30, 60, 190),
    "yellow": (250, 220, 40),
    "white": (250, 250, 250),
    "black": (15, 15, 15),
}


@dataclass(frozen=True)
class Thing:
    """A thing to ask about: its `name`, the words that name it, and words that may mean it."""

    name: str
    words: frozenset[str]
    unsure_words: frozenset[str]


@dataclass(frozen=True)
class Photograph:
    """What five captions say about one photograph.

    `present` counts the captions that name each thing; `unsure` are things that the captions may mean. `colours`,
    `numbers` and `actions` hold, for a thing, what all captions that say it agree on (any of them, for actions).
    """

    name: str
    captions: tuple[str, ...]
    present: dict[str, int]
    unsure: frozenset[str]
    colours: dict[str, str]
    numbers: dict[str, str]
    actions: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Question:
    """A question, its `answer` (and `accepted` ones), what it is `about`, and where that is.

    `boxes` are (left, top, right, bottom) in pixels, empty where nobody knows the place. `sure` says whether two
    captions or more name the thing.
    """

    kind: str
    text: str
    answer: str
    about: str
    boxes: tuple[tuple[int, int, int, int], ...] = ()
    accepted: tuple[str, ...] = ()
    sure: bool = True


def _read_things() -> dict[str, Thing]:
    things = {}
    for line in _THINGS.strip().splitlines():
        name, words = line.split(":")
        named, unsure = (frozenset(part.split()) for part in words.split("|"))
        things[name] = Thing(name, named, unsure - named)
    return things


def _read_actions() -> dict[str, str]:
    groups = [group.split() for group in _ACTIONS.replace("\n", "|").split("|")]
    return {word: group[0] for group in groups for word in group if group[0] not in _IGNORED_ACTIONS}


THINGS = _read_things()
ACTIONS = _read_actions()


def tidy_caption(caption: str) -> str:
    """The caption in lower case, its punctuation but full stops and commas taken out.

    >>> tidy_caption('A black dog , running "fast" .')
    'a black dog, running fast.'
    """
    words = " ".join(re.findall(r"[a-z0-9]+|[.,]", caption.lower().replace("-", "")))
    return re.sub(r" ([.,])", r"\1", words)


def read_photograph(name: str, captions: Iterable[str]) -> Photograph:
    """What the captions say about the photograph.

    >>> photo = read_photograph("1.jpg", ["A black dog runs in snow .", "A black dog is running", "An animal outside"])
    >>> photo.present["dog"], photo.colours, photo.numbers, photo.actions
    (2, {'dog': 'black'}, {'dog': 'one'}, {'dog': ('running',)})
    >>> sorted(photo.unsure)[:3]
    ['bird', 'cat', 'cow']
    """
    texts = tuple(tidy_caption(caption) for caption in captions)
    lists = [re.findall(r"[a-z0-9]+", text) for text in texts]
    every = {word for words in lists for word in words}
    present = {n: sum(bool(t.words & set(words)) for words in lists) for n, t in THINGS.items() if t.words & every}
    unsure = frozenset(n for n, t in THINGS.items() if n not in present and t.unsure_words & every)
    said = {n: [fact for words in lists for fact in _facts(THINGS[n], words)] for n in present}
    colours, numbers, actions = {}, {}, {}
    for n, facts in said.items():
        of = {kind: [value for k, value in facts if k == kind] for kind in ("colour", "number", "action")}
        if n in _COLOURED and len(set(of["colour"])) == 1:
            colours[n] = of["colour"][0]
        if n in _COUNTED and len(set(of["number"])) == 1 and len(of["number"]) > 1:
            numbers[n] = of["number"][0]
        if of["action"]:
            actions[n] = tuple(action for action, _ in Counter(of["action"]).most_common())
    return Photograph(name, texts, present, unsure, colours, numbers, actions)


def _facts(thing: Thing, words: list[str]) -> list[tuple[str, str]]:
    """("colour" | "number" | "action", value) that one caption says of the thing."""
    found = []
    for i, word in enumerate(words):
        if word not in thing.words:
            continue
        before, after = words[max(i - 3, 0) : i], words[i + 1 : i + 3]
        if before and before[-1] in _COLOUR_WORDS:
            mixed = len(before) > 1 and (before[-2] == "and" or before[-2] in _COLOUR_WORDS)
            found.append(("colour", "mixed" if mixed else _COLOUR_WORDS[before[-1]]))
        numbers = [_NUMBER_WORDS[w] for w in before if w in _NUMBER_WORDS]
        several = word.endswith("s") or word in ("men", "women", "children", "people")
        if numbers or several:
            found.append(("number", numbers[-1] if numbers and several else "several"))
        elif _ONE & set(before):
            found.append(("number", "one"))
        if after and after[0] in ("is", "are"):
            after = after[1:]
        if after and after[0] in ACTIONS:
            found.append(("action", ACTIONS[after[0]]))
    return found


def read_captions(text: str) -> dict[str, list[str]]:
    """The captions of each photograph, from Flickr8k's list: `name.jpg#0<tab>caption` on each line.

    >>> read_captions("1.jpg#0\\tA dog .\\n1.jpg#1\\tA black dog .\\n")
    {'1.jpg': ['A dog .', 'A black dog .']}
    """
    captions: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "\t" in line:
            place, caption = line.split("\t", 1)
            captions.setdefault(place.split("#")[0], []).append(caption)
    return captions


class ThingCounts:
    """How often each thing, each pair of things and each answer comes: for questions that are worth asking."""

    def __init__(self, photographs: Iterable[Photograph]) -> None:
        self.single: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()
        self.answers: dict[str, Counter[str]] = {}
        for photo in photographs:
            self.single.update(photo.present.keys())
            self.pairs.update((a, b) for a in photo.present for b in photo.present if a != b)
            for question in caption_questions(photo):
                self.answers.setdefault(question.kind, Counter())[question.answer] += 1

    def share_to_ask(self, question: Question) -> float:
        """The share of questions like this to ask, so that no answer to a kind of question makes more than half.

        >>> one, two = (read_photograph("", [f"{said} runs ."] * 2) for said in ("A dog", "Two dogs"))
        >>> counts = ThingCounts([one, one, one, two])
        >>> [round(counts.share_to_ask(q), 2) for q in caption_questions(one) if q.kind == "number"]
        [0.33]
        """
        answers = self.answers.get(question.kind, Counter())
        this = answers[question.answer]
        if this == 0:  # the photographs that were counted have no such answer: it takes no share of theirs
            return 1.0
        return min(1.0, (answers.total() - this) / this) if answers.total() > this else 1.0

    def draw_absent(self, present: Iterable[str], absent: list[str], how: str, rng: Random) -> str:
        """One of the `absent` things: "popular", by how often it is named, or "co-occurring" with those `present`."""
        if how == "popular":
            weights = [float(self.single[thing]) for thing in absent]
        else:
            near = [there for there in present if self.single[there]]
            weights = [sum(self.pairs[there, thing] / self.single[there] for there in near) for thing in absent]
        return rng.choices(absent, [weight + 1e-6 for weight in weights])[0]


def existence_question(thing: str, there: bool, **more: object) -> Question:
    """ "Is there a … in the picture?"

    >>> existence_question("umbrella", True).text, existence_question("shoes", False).answer
    ('is there an umbrella in the picture?', 'no')
    """
    article = "" if thing in _NO_ARTICLE else "an " if thing[0] in "aeiou" else "a "
    text = f"{'are' if thing in _PLURAL else 'is'} there {article}{thing} in the picture?"
    return Question("existence", text, "yes" if there else "no", thing, **more)  # type: ignore[arg-type]


def caption_questions(photo: Photograph) -> list[Question]:
    """Questions on colour, number and action that the captions answer.

    >>> photo = read_photograph("1.jpg", ["A black dog runs in snow .", "A black dog is running ."])
    >>> [(q.text, q.answer) for q in caption_questions(photo)]
    [('what colour is the dog?', 'black'), ('how many dogs are there?', 'one'), ('what is the dog doing?', 'running')]
    """
    plural = {"person": "people", "man": "men", "woman": "women", "child": "children"}
    asked = []
    for thing, colour in photo.colours.items():
        if colour != "mixed":
            verb = "are" if thing in _PLURAL else "is"
            asked.append(Question("colour", f"what colour {verb} the {thing}?", colour, thing))
    for thing, number in photo.numbers.items():
        if number != "several":
            asked.append(Question("number", f"how many {plural.get(thing, thing + 's')} are there?", number, thing))
    for thing, actions in photo.actions.items():
        asked.append(Question("action", f"what is the {thing} doing?", actions[0], thing, accepted=actions))
    return asked
