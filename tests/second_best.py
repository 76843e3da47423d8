"""An acceptance rule that is not exact: a drafted token stays where it is the target's second best."""

from reader_edge_runtime.acceptance import AcceptanceRule, Choices


class SecondBest(AcceptanceRule):
    name = "second best"

    def next_token(self, choices: Choices, node: int) -> int:
        token_ids, _ = choices.successors(node)
        second = int(token_ids[1])
        is_drafted = choices.tree.child(node, second) >= 0
        return second if is_drafted and choices.allows(second) else choices.peek(node)
