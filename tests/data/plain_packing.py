"""What packing should do to one sequence, by plain Python: the checker of the Arrow kernels."""

from dataclasses import dataclass


@dataclass
class Plain:
    """A prepared sequence: ids and labels, before the first token of a piece is taken out."""

    ids: list
    labels: list


def prepare(row, *, bos=None, eos=None, eos_ids=(), mask_eos_loss=False):
    """Pads off, masks on, special tokens added."""
    ids, keep = row["input_ids"], row.get("attention_mask") or [1] * len(row["input_ids"])
    labels = list(row.get("labels") or ids)
    for name in ("completion_mask", "assistant_masks"):
        if name in row:
            labels = [label if allowed else -100 for label, allowed in zip(labels, row[name])]
    ids = [token for token, kept in zip(ids, keep) if kept]
    labels = [label for label, kept in zip(labels, keep) if kept]
    if ids and bos is not None and ids[0] != bos:
        ids, labels = [bos, *ids], [-100, *labels]
    if ids and eos is not None and ids[-1] not in (eos, *eos_ids):
        ids, labels = [*ids, eos], [*labels, eos]
    return Plain(ids, labels)


def piece_of(sequence, start, length, *, overflow="error", bos=None, eos=None, eos_ids=(), mask_eos_loss=False):
    """(ids, labels) of a piece."""
    ids, labels = sequence.ids[start : start + length], sequence.labels[start : start + length]
    cut_end = start + length < len(sequence.ids)
    if bos is not None and overflow == "truncate_left" and start:
        ids[0] = bos
    if eos is not None and overflow == "truncate" and cut_end and length > 1:
        ids[-1] = labels[-1] = eos
    if mask_eos_loss and ids[-1] in (eos, *eos_ids):
        labels[-1] = -100
    labels[0] = -100
    return ids, labels


def check_rows(rows, dataset_rows, *, overflow="error", **special):
    """Every packed row is made of the pieces it says, in order; returns the number of tokens checked."""
    checked = 0
    prepared = {}
    for row in rows:
        at = 0
        lengths = [int(length) for length in row["seq_lengths"]]
        assert sum(lengths) == len(row["input_ids"]) == len(row["labels"])
        for sequence_id, length in zip(row["sequence_ids"], lengths, strict=True):
            sequence_id = int(sequence_id)
            if sequence_id not in prepared:
                prepared[sequence_id] = prepare(dataset_rows[sequence_id], **special)
            ids = [int(token) for token in row["input_ids"][at : at + length]]
            labels = [int(label) for label in row["labels"][at : at + length]]
            sequence = prepared[sequence_id]
            whole = len(sequence.ids)
            starts = {"truncate": [0], "truncate_left": [whole - length], "split": range(whole - length + 1)}
            options = [
                piece_of(sequence, start, length, overflow=overflow, **special) for start in starts.get(overflow, [0])
            ]
            assert (ids, labels) in options, (sequence_id, ids, labels, options[:3])
            checked += length
            at += length
    return checked
