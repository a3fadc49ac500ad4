"""Pruned decoding written the slow way: one sample at a time, no cache, no padding, no hooks.

Shares nothing with the seam but `select_script`, which has its own tests.
"""

import torch

from tests.support import tiny_llava as tiny
from vlprune.selection import select_script


@torch.no_grad()
def encode(model, pixels):
    """(tower states (n, d_v), projected tokens (n, d)) of each image alone."""
    pairs = []
    for image in pixels:
        states = model.model.vision_tower(image[None], output_hidden_states=True).hidden_states[-2][:, 1:]
        pairs.append((states[0], model.model.multi_modal_projector(states)[0]))
    return pairs


@torch.no_grad()
def script(model, question, m):
    """A chooser: Script with the LLM's embeddings of the question, given as token ids."""
    words = model.get_input_embeddings()(torch.tensor([question], device=model.device))

    def choose(tokens):
        return select_script(tokens[None], words, m).kept[0].tolist()

    return choose


@torch.no_grad()
def prompt(model, ids, pixels, choose):
    """(embeddings (S, d), original positions (S,)) of one unpadded row of token ids, with its images pruned."""
    table = model.get_input_embeddings()
    tokens = [projected for _, projected in encode(model, pixels)]
    vectors, places, used = [], [], 0
    position = 0
    while position < len(ids):
        if ids[position] != tiny.IMAGE:
            vectors.append(table(torch.tensor(ids[position], device=model.device)))
            places.append(position)
            position += 1
            continue
        image = tokens[used]
        used += 1
        for index in choose(image):
            vectors.append(image[index])
            places.append(position + index)
        position += len(image)
    assert used == len(tokens)
    return torch.stack(vectors), torch.tensor(places, device=model.device)


@torch.no_grad()
def decode(model, vectors, places, steps, original=False):
    """Greedy continuation: the whole sequence through the language model for every new token."""
    table, answer = model.get_input_embeddings(), []
    ends = model.generation_config.eos_token_id
    for _ in range(steps):
        count = len(vectors)
        positions = places if original else torch.arange(count, device=model.device)
        states = model.model.language_model(
            inputs_embeds=vectors[None],
            position_ids=positions[None],
            attention_mask=torch.ones(1, count, dtype=torch.long, device=model.device),
            use_cache=False,
        ).last_hidden_state
        answer.append(int(model.lm_head(states[0, -1]).argmax()))
        if answer[-1] == ends:
            break
        vectors = torch.cat([vectors, table(torch.tensor([answer[-1]], device=model.device))])
        places = torch.cat([places, places[-1:] + 1])
    return answer


def rows(inputs):
    """(unpadded ids, pixels) of each row of a batch."""
    used = 0
    for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"]):
        real = ids[mask.bool()].tolist()
        count = real.count(tiny.IMAGE) // tiny.TOKENS
        yield real, inputs["pixel_values"][used : used + count] if count else []
        used += count


def question(ids):
    """The token ids between the last user word and the last assistant word."""
    user, colon, assistant = (tiny.WORDS.index(word) for word in ("USER", ":", "ASSISTANT"))
    start = max(i for i in range(len(ids) - 1) if ids[i] == user and ids[i + 1] == colon) + 2
    stop = next(i for i in range(start, len(ids)) if ids[i] == assistant)
    return [token for token in ids[start:stop] if token != tiny.IMAGE]


def answers(model, inputs, m, steps, original=False, choose=None):
    """Greedy answers of every row; `choose` (tokens (n, d) -> indices) replaces Script."""
    found = []
    for ids, pixels in rows(inputs):
        chooser = choose or script(model, question(ids), m)
        found.append(decode(model, *prompt(model, ids, pixels, chooser), steps, original))
    return found


def padded(lists, steps, pad=0):
    return torch.tensor([row + [pad] * (steps - len(row)) for row in lists])


def new_tokens(out, inputs, steps):
    """What `generate` added, padded to `steps`."""
    sequences = out if isinstance(out, torch.Tensor) else out.sequences
    new = sequences[:, inputs["input_ids"].shape[1] :].cpu()
    return torch.nn.functional.pad(new, (0, steps - new.shape[1]))
