"""Finding the question in a prompt."""

import warnings

import pytest
import torch

from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from vlprune import CDPruner, DppOnly, FastV, Script, ScriptPlus, ScriptReleased, attach
from vlprune.pruning.question import clean_question

KEEP = 9
GREEDY = {"do_sample": False, "max_new_tokens": 3}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% for p in m['content'] %}"
    "{{ '<image>' if p['type'] == 'image' else p['text'] }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
STRINGS = (
    "{% for m in messages %}{{ '[' + m['role'] + '] ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def asked(model, processor, batch, **arguments):
    with attach(model, Script(keep=KEEP, relevance="llm"), processor=processor, **arguments) as pruner:
        model.generate(**batch, **GREEDY)
    return [record.query for record in pruner.records]


def conversation(processor, device, turns, template=None):
    """A batch of one row from (role, text, images) turns."""
    messages = [
        {"role": role, "content": [{"type": "image"}] * images + [{"type": "text", "text": text}]}
        for role, text, images in turns
    ]
    text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, chat_template=template)
    return tiny.encode(processor, [text], sum(images for *_, images in turns), device)


def test_the_last_user_turn(model, processor, device):
    batch = conversation(
        processor,
        device,
        [("user", "what color is the cat ?", 1), ("assistant", "red", 0), ("user", "how many dogs are in it ?", 0)],
    )
    assert asked(model, processor, batch) == ["how many dogs are in it ?"]


def test_a_system_turn_is_no_question(model, processor, device):
    batch = conversation(processor, device, [("system", "tell me about the image", 0), ("user", "is it red ?", 1)])
    assert asked(model, processor, batch) == ["is it red ?"]


def test_format_hints_are_cut(model, processor, device):
    batch = conversation(
        processor, device, [("user", "is it red ? Answer the question using a single word or phrase .", 1)]
    )
    assert asked(model, processor, batch) == ["is it red ?"]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("What is it?\nAnswer the question using a single word or phrase.", "What is it?"),
        ("Which? A. x B. y\nAnswer with the option's letter from the given choices directly.", "Which? A. x B. y"),
        ("Is it red? Please answer yes or no.", "Is it red?"),
        ("USER: <image>\nWhat is it? ASSISTANT:", "What is it?"),
        ("answer the question using a single word or phrase What is it?", "What is it?"),
        ("What does the USER: sign say?", "What does the USER: sign say?"),
        ("Answer yes or no", ""),
    ],
)
def test_cleaning(text, question):
    assert clean_question(text, ["<image>"]) == question


def test_one_rule_for_all_sources(model, processor, clip, device):
    """From the prompt or from query=, with or without hints: the same question and the same tokens."""
    hints = "is it red ? Answer the question using a single word or phrase ."
    batch = conversation(processor, device, [("user", hints, 1)])
    kept = []
    for encoder in (None, (clip, processor.tokenizer)):
        for query in (None, hints, ["USER: is it red ?  Answer with a single word or phrase."], "is it red ?"):
            with attach(model, Script(keep=KEEP), processor=processor, query=query, dual_encoder=encoder) as pruner:
                model.generate(**batch, **GREEDY)
            assert pruner.last.query == "is it red ?"
            kept.append((encoder is None, pruner.last.kept.tolist()))
    assert len(set(map(str, kept))) == 2


def test_a_query_of_hints_alone_is_no_question(model, processor, single):
    words = r"query='Answer yes or no': there is no question in it"
    query = "Answer yes or no"
    with attach(model, Script(keep=KEEP), processor=processor, query=query), pytest.raises(ValueError, match=words):
        model.generate(**single, **GREEDY)


def test_words_for_images_are_no_question(model, processor, single):
    assert asked(model, processor, single, query="<image> is it red ?") == ["is it red ?"]


@pytest.mark.parametrize("method", [Script, ScriptPlus, ScriptReleased, CDPruner])
def test_without_the_question(model, processor, ragged, method):
    """relevance="none": whatever is asked, the tokens are those of a method to which all are equally relevant."""
    kept = []
    for query in ("is it red ?", "where is the dog ?", None):
        with attach(model, method(keep=KEEP, relevance="none"), processor=processor, query=query) as pruner:
            model.generate(**ragged, **GREEDY)
        assert {(record.source, record.query) for record in pruner.records} == {(None, None)}
        kept.append([record.kept.tolist() for record in pruner.records])
    assert kept == [kept[0]] * 3
    if method is CDPruner:
        with attach(model, DppOnly(keep=KEEP)) as pruner:
            model.generate(**ragged, **GREEDY)
        assert kept[0] == [record.kept.tolist() for record in pruner.records]


def llm_warnings(model, method, **arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attach(model, method, **arguments).detach()
    return [(str(one.message), one.filename) for one in caught]


def test_the_fallback_to_the_llm_is_said_once(model, processor, clip):
    ((said, where),) = llm_warnings(model, Script(keep=KEEP), processor=processor)
    assert "script compares question and tokens by the LLM's embeddings" in said
    assert 'pass dual_encoder= ("auto"' in said
    assert 'relevance="none"' in said
    assert where == __file__
    for quiet in (Script(relevance="llm"), Script(relevance="none"), DppOnly(), DppOnly() + FastV()):
        assert llm_warnings(model, quiet, processor=processor) == []
    assert llm_warnings(model, Script(), processor=processor, dual_encoder=clip) == []
    assert len(llm_warnings(model, Script() + FastV(), processor=processor)) == 1


def test_no_advice_where_there_is_no_text_twin(model, processor, monkeypatch):
    monkeypatch.setattr("vlprune.models.llava.Llava.has_dual_encoder", False)
    ((said, _),) = llm_warnings(model, Script(keep=KEEP), processor=processor)
    assert "dual_encoder=" not in said
    assert 'relevance="none"' in said


@pytest.mark.parametrize("template", [CHATML, STRINGS])
def test_other_chat_templates(model, device, template):
    processor = tiny.processor()
    marks = ["<|im_start|>", "<|im_end|>", "[user]", "[assistant]", "user", "assistant"]
    processor.tokenizer.add_tokens(marks[2:])
    processor.tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", *marks[:2]]})
    assert len(processor.tokenizer) <= tiny.VOCAB
    processor.chat_template = template
    text = {
        CHATML: "<|im_start|>user\n<image>is it red ?<|im_end|>\n<|im_start|>assistant\nyellow<|im_end|>\n"
        "<|im_start|>user\nhow many dogs ?<|im_end|>\n<|im_start|>assistant\n",
        STRINGS: "[user] <image> is it red ? [assistant] yellow [user] how many dogs ? [assistant]",
    }[template]
    batch = tiny.encode(processor, [text], 1, device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert asked(model, processor, batch) == ["how many dogs ?"]


def test_a_prompt_that_is_not_of_the_template_warns_once(model, processor, device):
    batch = tiny.encode(processor, ["tell me <image> what color is it ?"], 1, device)
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        with pytest.warns(UserWarning, match="user turn was not found"):
            model.generate(**batch, **GREEDY)
        assert pruner.last.query == "what color is it ?"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.generate(**batch, **GREEDY)


def test_a_tokenizer_will_do(model, processor, single):
    assert asked(model, processor.tokenizer, single) == ["what color is the cat ?"]


def test_without_a_processor_the_text_after_the_image_counts(model, single, ragged):
    ids = single["input_ids"][0].tolist()
    after = ids[max(i for i, token in enumerate(ids) if token == tiny.IMAGE) + 1 :]
    chooser = reference.script(model, after, KEEP)
    with attach(model, Script(keep=KEEP)) as pruner:
        model.generate(**single, **GREEDY)
        assert pruner.last.query is None
        assert pruner.last.kept.tolist() == chooser(reference.encode(model, single["pixel_values"])[0][1])
        model.generate(**ragged, **GREEDY)
        assert len(pruner.records) == 4


def test_special_tokens_are_not_part_of_the_question(model, single):
    padded = dict(single)
    end = torch.full_like(single["input_ids"][:, :2], model.generation_config.eos_token_id)
    padded["input_ids"] = torch.cat([single["input_ids"], end], 1)
    padded["attention_mask"] = torch.cat([single["attention_mask"], torch.ones_like(end)], 1)
    with attach(model, Script(keep=KEEP)) as pruner:
        model.generate(**single, **GREEDY)
        kept = pruner.last.kept.tolist()
        model.generate(**padded, **GREEDY)
    assert pruner.last.kept.tolist() == kept


def test_an_explicit_question(model, processor, ragged):
    assert asked(model, processor, ragged, query="where is the dog ?") == ["where is the dog ?"] * 4
    each = ["is it red ?", "is it blue ?", "is it a cat ?"]
    assert asked(model, processor, ragged, query=each) == [each[0], each[1], each[1], each[2]]


def test_an_explicit_question_decides(model, processor, single):
    with attach(model, Script(keep=KEEP), processor=processor, query="where is the yellow thing ?") as pruner:
        model.generate(**single, **GREEDY)
        words = processor.tokenizer("where is the yellow thing ?", add_special_tokens=False)["input_ids"]
        tokens = reference.encode(model, single["pixel_values"])[0][1]
        assert pruner.last.kept.tolist() == reference.script(model, words, KEEP)(tokens)
        pruner.query = None
        model.generate(**single, **GREEDY)
        assert pruner.last.query == "what color is the cat ?"


def test_text_only_rows_need_no_question(model, processor, mixed):
    questions = ["is it red ?", None, "is it blue ?"]
    assert asked(model, processor, mixed, query=questions) == ["is it red ?", "is it blue ?", "is it blue ?"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        (["a", "b"], "query has 2 entries, but the prompt has 3 rows"),
        (["a", None, "b"], r"query\[1\] is None"),
        ("  ", "pass query="),
    ],
)
def test_questions_that_do_not_fit(model, processor, ragged, query, words):
    with attach(model, Script(keep=KEEP), processor=processor, query=query), pytest.raises(ValueError, match=words):
        model.generate(**ragged, **GREEDY)


@pytest.mark.parametrize("query", [["a", "b"], ["a", None, "b"], "  ", "words, but no tokenizer"])
def test_a_bad_question_is_refused_before_the_tower_runs(model, processor, ragged, query):
    seen = []
    hook = model.model.vision_tower.register_forward_pre_hook(lambda *given: seen.append(1))
    given = None if query == "words, but no tokenizer" else processor
    try:
        with torch.no_grad(), attach(model, Script(keep=KEEP), processor=given, query=query) as pruner:
            for call in (model, lambda **batch: model.generate(**batch, **GREEDY), pruner.select):
                with pytest.raises(ValueError, match="query"):
                    call(ragged) if call == pruner.select else call(**ragged)
            assert seen == []
            pruner.query = None
            pruner.select(ragged)
            assert seen == [1]
    finally:
        hook.remove()


def test_a_question_that_is_none_is_refused_when_it_is_set(model, processor):
    with (
        attach(model, Script(keep=KEEP), processor=processor) as pruner,
        pytest.raises(TypeError, match="query=5"),
    ):
        pruner.query = 5


def test_a_question_that_the_tokenizer_makes_nothing_of(model, processor, single, monkeypatch):
    monkeypatch.setattr(type(processor.tokenizer), "__call__", lambda *given, **options: {"input_ids": []})
    with (
        attach(model, Script(keep=KEEP), processor=processor, query="\u200b?"),
        pytest.raises(ValueError, match="has no tokens: pass query= with other words"),
    ):
        model.generate(**single, **GREEDY)


def test_no_question_at_all(model, processor, device, single):
    last = int((single["input_ids"] == tiny.IMAGE).nonzero()[-1, 1]) + 1
    bare = {name: single[name][:, :last] for name in ("input_ids", "attention_mask")}
    bare["pixel_values"] = single["pixel_values"]
    for given in (None, processor):
        with attach(model, Script(keep=KEEP), processor=given), pytest.raises(ValueError, match="pass query="):
            model.generate(**bare, **GREEDY)
    with attach(model, DppOnly(keep=KEEP)):  # a method that asks no question does not mind
        model.generate(**bare, **GREEDY)


def test_a_question_in_words_needs_a_tokenizer(model, single):
    with attach(model, Script(keep=KEEP), query="is it red ?"), pytest.raises(ValueError, match="processor="):
        model.generate(**single, **GREEDY)
