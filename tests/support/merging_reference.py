"""Token merging as its paper says it (Bolya et al., ICLR 2023), one image and one token at a time, in float64."""

import torch


def merged_states(tower, states, merge, leading):
    """The hidden states (L, d) before the first layer and behind each, of one image whose embeddings are `states`."""
    layers = [module for module in tower.modules() if hasattr(module, "layer_norm2") or hasattr(module, "norm2")]
    tokens = [{"state": state, "places": [place]} for place, state in enumerate(states)]
    total, found = round(merge * (len(states) - leading)), [states]
    for number, layer in enumerate(layers):
        keys = attend(layer, tokens, tower.config.num_attention_heads)
        done, wanted = len(states) - len(tokens), total * (number + 1) // len(layers)
        tokens = tokens[:leading] + merge_most_similar(tokens[leading:], keys[leading:], wanted - done)
        for token in tokens:
            token["state"] = token["state"] + mlp(layer, token["state"])
        whole = torch.empty_like(states)
        for token in tokens:
            whole[token["places"]] = token["state"]
        found.append(whole)
    return found


def attend(layer, tokens, heads):
    """Attention in which a token counts as often as it has places; returns each token's mean key."""
    states = torch.stack([token["state"] for token in tokens])
    is_clip = hasattr(layer, "self_attn")
    module = layer.self_attn if is_clip else layer.attention
    normed = layer.layer_norm1(states) if is_clip else layer.norm1(states)
    inner = module if hasattr(module, "q_proj") else module.attention  # until transformers 5.18
    names = ("q_proj", "k_proj", "v_proj") if inner is module else ("query", "key", "value")
    query, key, value = (getattr(inner, name)(normed).view(len(tokens), heads, -1) for name in names)
    out = torch.zeros_like(value)
    for head in range(heads):
        for i in range(len(tokens)):
            weights = torch.stack(
                [
                    len(token["places"]) * (query[i, head] @ key[j, head] / key.shape[-1] ** 0.5).exp()
                    for j, token in enumerate(tokens)
                ]
            )
            out[i, head] = (weights / weights.sum()) @ value[:, head]
    last = module.out_proj if is_clip else module.o_proj if hasattr(module, "o_proj") else module.output.dense
    added = last(out.flatten(1))
    for token, more in zip(tokens, added if is_clip else layer.layer_scale1(added)):
        token["state"] = token["state"] + more
    return [key[i].mean(dim=0) for i in range(len(tokens))]


def merge_most_similar(tokens, keys, count):
    """Every second token proposes itself to the most similar of the others; the `count` best proposals are merged."""
    pairs = []
    for i in range(0, len(tokens), 2):
        cosines = {j: torch.cosine_similarity(keys[i], keys[j], dim=0).item() for j in range(1, len(tokens), 2)}
        best = max(cosines, key=cosines.get)
        pairs.append((cosines[best], i, best))
    chosen = sorted(pairs, reverse=True)[:count]
    groups = {j: [j] for j in range(len(tokens)) if j not in [i for _, i, _ in chosen]}
    for _, i, j in chosen:
        groups[j].append(i)
    merged = []
    for members in groups.values():
        places = [place for member in members for place in tokens[member]["places"]]
        total = sum(tokens[member]["state"] * len(tokens[member]["places"]) for member in members)
        merged.append({"state": total / len(places), "places": places})
    return merged


def mlp(layer, state):
    if hasattr(layer, "layer_norm2"):
        return layer.mlp(layer.layer_norm2(state))
    return layer.layer_scale2(layer.mlp(layer.norm2(state)))
