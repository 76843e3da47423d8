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

    def added(self, before: torch.Tensor, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """To the logits of tokens (B, K) behind others (B,), with their row's projected states (B, r): (B, K)."""
        states = self.predecessor_codebook(before) * hidden
        added: torch.Tensor = (self.successor_codebook(tokens) @ states[:, :, None])[:, :, 0]
        return added


class MarkovHead(torch.nn.Module):
    """DSpark's: a token's score behind another one p is its logit and <w1[p], w2[token]>.

    Parameters: markov_w1 (V, r), markov_w2 (Vd, r), of the network's own vocabulary.
    """

    def __init__(self, num_tokens: int, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = torch.nn.Embedding(num_tokens, rank)
        self.markov_w2 = torch.nn.Linear(rank, draft_vocab_size, bias=False)

    def added(self, before: torch.Tensor) -> torch.Tensor:
        """To the logits of all tokens behind some (B,): (B, Vd)."""
        added: torch.Tensor = self.markov_w2(self.markov_w1(before))
        return added
