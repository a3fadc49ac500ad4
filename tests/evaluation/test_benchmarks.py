"""Annotation files in the shapes in which benchmarks are distributed: read, asked, scored, and refused by line."""

import json

import pytest

from tests.support.evaluation_runs import read_lines
from vlprune import pocket
from vlprune.cli.app import main
from vlprune.errors import UserError
from vlprune.evaluation.benchmarks import read_benchmark, submission_lines
from vlprune.evaluation.official_scores import official_scores
from vlprune.evaluation.questions import score_answer

TEN = ["red"] * 4 + ["blue"] * 6


def save_images(folder, *names):
    for name, image in zip(names, pocket.images(pocket.scenes("test", len(names)))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(folder / name)


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def pope(folder):
    save_images(folder, "val2014/COCO_val2014_000000310196.jpg")
    rows = [
        {"question_id": i, "image": "COCO_val2014_000000310196.jpg", "text": f"Is there a {thing}?", "label": label}
        for i, (thing, label) in enumerate([("snowboard", "yes"), ("car", "no")], start=1)
    ]
    path = folder / "coco_pope_random.json"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def gqa(folder):
    save_images(folder, "images/n161313.jpg")
    one = {"imageId": "n161313", "question": "Is it overcast?", "answer": "no", "fullAnswer": "No, it is sunny."}
    return write_json(folder / "testdev_balanced_questions.json", {"201307251": one})


def textvqa(folder):
    save_images(folder, "train_images/003a8ae2ef43b901.jpg")
    one = {"question": "what is the brand?", "image_id": "003a8ae2ef43b901", "question_id": 34602, "answers": TEN}
    return write_json(folder / "TextVQA_0.5.1_val.json", {"dataset_name": "textvqa", "data": [one]})


def vqav2(folder, answers=True):
    save_images(folder, "val2014/COCO_val2014_000000262148.jpg")
    one = {"image_id": 262148, "question": "Where is he looking?", "question_id": 262148000}
    if answers:
        said = {"question_id": 262148000, "answers": [{"answer": text, "answer_id": i} for i, text in enumerate(TEN)]}
        write_json(folder / "v2_mscoco_val2014_annotations.json", {"annotations": [said]})
    return write_json(folder / "v2_OpenEnded_mscoco_val2014_questions.json", {"questions": [one]})


def vizwiz(folder):
    save_images(folder, "val/VizWiz_val_00000000.jpg")
    answers = [{"answer": text, "answer_confidence": "yes"} for text in TEN]
    one = {"image": "VizWiz_val_00000000.jpg", "question": "What is it?", "answers": answers, "answerable": 1}
    return write_json(folder / "val.json", [one])


def scienceqa(folder):
    save_images(folder, "test/4/image.png")
    shared = {"question": "Which is larger?", "choices": ["Georgia", "Ohio"], "answer": 1, "hint": "Look."}
    with_image = {**shared, "image": "image.png", "split": "test"}
    return write_json(folder / "problems.json", {"4": with_image, "5": {**shared, "image": None, "split": "test"}})


def mme(folder):
    save_images(folder, "MME/existence/0001.jpg", "MME/posters/images/tt01.jpg")
    hint = "Please answer yes or no."
    (folder / "MME/existence/0001.txt").write_text(f"Is there a dog? {hint}\tYes\nIs there a cat? {hint}\tNo\n")
    (folder / "MME/posters/questions_answers_YN").mkdir()
    (folder / "MME/posters/questions_answers_YN/tt01.txt").write_text(f"Is it Up? {hint}\tYes\nIs it Her? {hint}\tNo\n")
    return folder / "MME"


def chartqa(folder):
    save_images(folder, "test/png/8127.png")
    return write_json(folder / "test/test_human.json", [{"imgname": "8127.png", "query": "How many?", "label": "14"}])


BENCHMARKS = {
    "pope": (pope, ["yes", "no"], {"POPE accuracy": 100, "POPE F1": 100}),
    "gqa": (gqa, ["No."], {"GQA accuracy": 100}),
    "textvqa": (textvqa, ["Red"], {"TextVQA accuracy": 100}),
    "vqav2": (vqav2, ["the red"], {"VQAv2 accuracy": 100}),
    "vizwiz": (vizwiz, ["red"], {"VizWiz accuracy": 100}),
    "scienceqa": (scienceqa, ["B. Ohio"], {"ScienceQA accuracy": 100}),
    "mme": (mme, ["Yes", "no", "yes", "Yes"], {"MME points": 200 + 50}),
    "chartqa": (chartqa, ["14.5"], {"ChartQA relaxed accuracy": 100}),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_known_files(name, tmp_path):
    write, answers, expected = BENCHMARKS[name]
    questions = read_benchmark(write(tmp_path))
    assert len(questions) == len(answers)
    assert all(question.image().size == (192, 192) for question in questions)
    lines = [{"answer": said, "score": score_answer(one, said)} for one, said in zip(questions, answers)]
    assert official_scores(questions, lines) == expected
    for question in questions:
        assert question.text.partition("\n")[0].lower() in (question.query.lower(), "context: look.") or name == "mme"
        assert "Answer" not in question.query
        assert "Ohio" not in question.query


def test_soft_scores_are_not_cut(tmp_path):
    (question,) = read_benchmark(vqav2(tmp_path))
    two = ["red"] * 2 + ["blue"] * 8
    assert score_answer(question, "green") == 0
    assert score_answer(type(question)(0, "", "vqav2", "", tuple(two), rule="vqa"), "red") == pytest.approx(0.6)


BROKEN = {
    "not JSON": ("a.json", "[{", r"a.json, line 1: not JSON \(Expecting property name"),
    "another file": ("a.json", '["x"]', r"a.json: no annotation file that is known: POPE, GQA"),
    "a label": (
        "p.json",
        '{"question_id": 1, "image": "a.jpg", "text": "b", "label": "maybe"}',
        r"p.json, line 1: label='maybe': yes or no\.",
    ),
    "no question": ("g.json", '{"7": {"imageId": "n1", "answer": "no"}}', r"question 7: it needs 'question'; it has"),
    "no image": (
        "c.json",
        '[{"imgname": "8.png", "query": "How many?", "label": "14"}]',
        r"c.json, \[0\]: there is no image '8.png' in ",
    ),
    "a choice": (
        "s.json",
        '{"4": {"question": "a", "choices": ["b"], "answer": 1, "image": "i.png", "split": "test"}}',
        r"question 4: answer=1: the number of one of its 1 choices, from 0 on\.",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_named_by_file_and_line(name, tmp_path):
    file, text, told = BROKEN[name]
    (tmp_path / file).write_text(text)
    with pytest.raises(UserError, match=told):
        read_benchmark(tmp_path / file)


def test_an_mme_line_without_its_answer(tmp_path):
    folder = mme(tmp_path)
    (folder / "existence/0001.txt").write_text("Is there a dog?\n")
    with pytest.raises(UserError, match=r"0001.txt, line 1: a question, a tab, and Yes or No\."):
        read_benchmark(folder)


def test_other_files_are_left_to_their_reader(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"image": "a.png", "question": "b", "answer": "c"}\n')
    assert read_benchmark(tmp_path / "own.jsonl") is None
    assert read_benchmark(tmp_path) is None


def test_a_run_writes_scores_and_the_server_s_file(tmp_path, capsys):
    data = vqav2(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["eval", "--data", str(data), "--methods", "random", "--keep", "64", "--out", str(tmp_path / "run")])
    assert ended.value.code == 0
    (line,) = read_lines(tmp_path / "run", "random@64")
    assert line["score"] in (0.0, 1.0)
    (sent,) = json.loads((tmp_path / "run" / "submission-random@64.json").read_text())
    assert sent == {"question_id": 262148000, "answer": line["answer"]}
    assert "Official scores" in capsys.readouterr().out


def test_files_for_servers():
    kinds = {"vizwiz": [{"image": "a.jpg", "answer": "x"}], "gqa": None}
    for kind, expected in kinds.items():
        from vlprune.evaluation.questions import ImageQuestion

        assert submission_lines([ImageQuestion(0, "a.jpg", kind, "b", ())], {0: "x"}) == expected
