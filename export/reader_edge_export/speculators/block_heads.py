"""Heads of networks that draft a block: what a token before says of the next one."""

import torch


class CandidateSelector(torch.nn.Module):
    """DFlash2's: a token's score behind another one p is its logit and <predecessor[p] * hidden, successor[token]>.

    Parameters: predecessor_codebook and successor_codebook (V, r), hidden_projection (r, E).
    """

    def __init__(self, num_tokens: int, rank: int, size: int) -> None:
        super().__init__()
        self.predecessor_codebook = torch.nn.Embedding(num_tokens, rank)
        self.successor_codebook = torch.nn.Embedding(num_tokens, rank)
        self.hidden_projection = torch.nn.Linear(size, rank, bias=False)

    def factors(
        self, before: torch.Tensor, read: torch.Tensor, ids: torch.Tensor, token_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of what each token before adds to the logit of each token, (B, R, L, r) and (B, R, K, r): their products.

        before: the target's ids (B, R, L). read: what the logit head reads (B, R, E). ids: of the tokens in the
        network's own vocabulary, and token_ids: in the target's, (B, R, K) both.
        """
        hidden = self.hidden_projection(read)
        left = _looked_up(self.predecessor_codebook.weight, before) * hidden[:, :, None]
        return left, _looked_up(self.successor_codebook.weight, token_ids)


class MarkovHead(torch.nn.Module):
    """DSpark's: a token's score behind another one p is its logit and <w1[p], w2[token]>.

    Parameters: markov_w1 (V, r), markov_w2 (Vd, r), of the network's own vocabulary.
    """

    def __init__(self, num_tokens: int, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = torch.nn.Embedding(num_tokens, rank)
        self.markov_w2 = torch.nn.Linear(rank, draft_vocab_size, bias=False)

    def factors(
        self, before: torch.Tensor, read: torch.Tensor, ids: torch.Tensor, token_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `CandidateSelector.factors`."""
        return _looked_up(self.markov_w1.weight, before), _looked_up(self.markov_w2.weight, ids)


def _looked_up(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows (n, r) by ids (B, R, K): (B, R, K, r)."""
    return torch.nn.functional.embedding(ids.flatten(1), table).reshape(*ids.shape, -1)
