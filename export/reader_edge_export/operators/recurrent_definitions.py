"""What the operators of recurrent layers compute, in operators that ONNX Runtime has.

Sums are those of CumSum: one by one, ascending. Loops run as often as a Size says, which the runtime asks of a package.
Bodies hold no Identity: what tidies graphs would take it away, and with it an output's name.
"""

# input (B, N, C), weight (C, K): output (B, N, C) sums a node, times the last column, and its K - 1 nearest ancestors.
# Those of the first nodes are rows of pending (B, P, C), then of state (B, K - 1, C), the oldest first.
TREE_CONV = """
<domain: "reader_edge", opset_import: ["" : 24]>
TreeConv (input, weight, parents, num_kept, state, pending, num_pending) => (output, present)
{
  yes = Constant <value = bool {1}> ()
  zero = Constant <value = int64 {0}> ()
  one = Constant <value = int64 {1}> ()
  two = Constant <value = int64 {2}> ()
  newest_of_all = Constant <value = int64 {-1}> ()
  axis = Constant <value_ints = [1]> ()
  taps_axis = Constant <value_ints = [2]> ()
  index_axis = Constant <value_ints = [3]> ()
  first_axis = Constant <value_ints = [0]> ()
  last = Constant <value_ints = [-1]> ()
  last_but_one = Constant <value_ints = [-2]> ()
  before_all = Constant <value_ints = [-9223372036854775807]> ()
  downwards = Constant <value_ints = [-1]> ()

  rows = Concat <axis = 1> (state, pending, input)
  num_stored = Shape <start = 1, end = 2> (state)
  num_slots = Shape <start = 1, end = 2> (pending)
  num_before = Add (num_stored, num_slots)
  batch = Shape <start = 0, end = 1> (parents)
  num_nodes = Shape <start = 1, end = 2> (parents)

  kept = Unsqueeze (num_kept, axis)
  last_kept = Sub (kept, one)
  replayed = Unsqueeze (num_pending, axis)
  num_known = Add (num_stored, replayed)
  committed = Sub (num_known, one)

  node_count = Squeeze (num_nodes)
  node = Range (zero, node_count, one)
  is_kept = Less (node, kept)
  node_before = Sub (node, one)
  later_parent = Max (parents, last_kept)
  parent = Where (is_kept, node_before, later_parent)
  is_first = Less (parent, zero)
  parent_row = Add (parent, num_before)
  row_before_node = Where (is_first, committed, parent_row)

  stored_count = Squeeze (num_before)
  stored = Range (zero, stored_count, one)
  stored_before = Sub (stored, one)
  row_before_stored = Max (stored_before, zero)
  stored_sizes = Concat <axis = 0> (batch, num_before)
  rows_before_stored = Expand (row_before_stored, stored_sizes)
  row_before = Concat <axis = 1> (rows_before_stored, row_before_node)

  node_row = Add (node, num_before)
  node_sizes = Concat <axis = 0> (batch, num_nodes)
  node_rows = Expand (node_row, node_sizes)
  has_kept = Less (zero, kept)
  kept_row = Add (last_kept, num_before)
  newest_row = Where (has_kept, kept_row, committed)
  start_rows = Concat <axis = 1> (node_rows, newest_row)
  one_channel = Gather (weight, zero)
  tap_count = Size (one_channel)
  end_rows, tap_rows = Loop <body = tap (int64 t, bool goes, here) => (goes_on, there, place) {
    goes_on = And (yes, goes)
    place = Add (here, zero)
    there = GatherElements <axis = 1> (row_before, here)
  }> (tap_count, yes, start_rows)
  places = Transpose <perm = [1, 2, 0]> (tap_rows)
  indices = Unsqueeze (places, index_axis)
  taps = GatherND <batch_dims = 1> (rows, indices)
  parts = Concat <axis = 0> (num_nodes, axis)
  node_taps, newest_taps = Split <axis = 1> (taps, parts)

  columns = Transpose <perm = [1, 0]> (weight)
  columns_downwards = Slice (columns, last, before_all, first_axis, downwards)
  products = Mul (node_taps, columns_downwards)
  sums = CumSum (products, two)
  output = Gather <axis = 2> (sums, newest_of_all)
  window = Slice (newest_taps, last_but_one, before_all, taps_axis, downwards)
  present = Squeeze (window, axis)
}
"""

# A state (Hk, G, Dk, Dv), G heads to a key, behind the node that has this capsule: [key | value | decay ...].
_STEP = """
<domain: "reader_edge", opset_import: ["" : 24]>
{kind}Step (state, capsule) => (next)
{{
  one = Constant <value_ints = [1]> ()
  key_heads = Shape <start = 0, end = 1> (state)
  group = Shape <start = 1, end = 2> (state)
  key_size = Shape <start = 2, end = 3> (state)
  value_size = Shape <start = 3> (state)
  heads = Mul (key_heads, group)
  num_keys = Mul (key_heads, key_size)
  num_values = Mul (heads, value_size)
  sizes = Concat <axis = 0> (num_keys, num_values, {sizes})
  keys, values, {parts} = Split <axis = 0> (capsule, sizes)
  key_sizes = Concat <axis = 0> (key_heads, one, key_size, one)
  value_sizes = Concat <axis = 0> (key_heads, group, one, value_size)
  head_sizes = Concat <axis = 0> (key_heads, group, one, one)
  key = Reshape (keys, key_sizes)
  value = Reshape (values, value_sizes)
  decay = Reshape (decays, head_sizes)

  decayed = Mul (state, decay)
{correction}  changes = Mul (key, {added})
  next = Add (decayed, changes)
}}
"""

# Of a value only that is added which the state does not recall of its key, weighed by beta.
_CORRECTION = """
  newest = Constant <value_ints = [-1]> ()
  rows_axis = Constant <value = int64 {2}> ()
  beta = Reshape (betas, head_sizes)
  products = Mul (decayed, key)
  sums = CumSum (products, rows_axis)
  recalled = Gather <axis = 2> (sums, newest)
  missed = Sub (value, recalled)
  correction = Mul (missed, beta)
""".lstrip("\n")

# What a query (Hk, Dk) reads of a state (Hk, G, Dk, Dv): (Hk G, Dv).
_READ_STATE = """
<domain: "reader_edge", opset_import: ["" : 24]>
ReadState (state, query) => (output)
{
  last = Constant <value = int64 {-1}> ()
  keys_axis = Constant <value = int64 {2}> ()
  axes = Constant <value_ints = [1, 3]> ()
  rest = Constant <value_ints = [-1]> ()
  value_size = Shape <start = 3> (state)
  sizes = Concat <axis = 0> (rest, value_size)
  column = Unsqueeze (query, axes)
  products = Mul (state, column)
  sums = CumSum (products, keys_axis)
  read = Gather <axis = 2> (sums, last)
  output = Reshape (read, sizes)
}
"""

# Along each tree of query (B, N, Hk, Dk) and capsules (B, N, C), from state (B, Hv, Dk, Dv) and pending (B, P, C): what
# the nodes read (B, N, Hv, Dv). Sequences hold the states that nodes hang on, and what was read.
_WALK = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
{kind}Walk (query, capsules, parents, num_kept, state, pending, num_pending) => (output, present)
{{
  yes = Constant <value = bool {{1}}> ()
  zero = Constant <value = int64 {{0}}> ()
  one = Constant <value = int64 {{1}}> ()
  first = Constant <value_ints = [0]> ()
  end = Constant <value_ints = [9223372036854775807]> ()
  rest = Constant <value_ints = [-1]> ()
  batch_count = Size (num_kept)
  key_heads = Shape <start = 2, end = 3> (query)
  state_sizes = Shape <start = 1> (state)
  matrix_sizes = Shape <start = 2> (state)
  grouped_sizes = Concat <axis = 0> (key_heads, rest, matrix_sizes)
  output, present = Loop <body = tree (int64 b, bool tree_goes) => (tree_goes_on, tree_output, tree_present) {{
    tree_goes_on = And (yes, tree_goes)
    tree_query = Gather (query, b)
    tree_capsules = Gather (capsules, b)
    tree_parents = Gather (parents, b)
    tree_kept = Gather (num_kept, b)
    kept_end = Unsqueeze (tree_kept, first)
    kept_nodes = Slice (tree_parents, first, kept_end)
    kept_count = Size (kept_nodes)
    other_nodes = Slice (tree_parents, kept_end, end)
    other_count = Size (other_nodes)
    tree_pending = Gather (pending, b)
    tree_num_pending = Gather (num_pending, b)
    pending_end = Unsqueeze (tree_num_pending, first)
    pending_column = Gather <axis = 1> (tree_pending, zero)
    pending_rows = Slice (pending_column, first, pending_end)
    pending_count = Size (pending_rows)
    tree_state = Gather (state, b)
    stored = Reshape (tree_state, grouped_sizes)
    replayed = Loop <body = replay (int64 p, bool replay_goes, old) => (replay_goes_on, renewed) {{
      replay_goes_on = And (yes, replay_goes)
      pending_capsule = Gather (tree_pending, p)
      renewed = reader_edge.{kind}Step (old, pending_capsule)
    }}> (pending_count, yes, stored)

    nothing = SequenceEmpty ()
    committed, kept_outputs = Loop <body = keep (int64 k, bool keep_goes, before, outputs_before)
      => (keep_goes_on, after, outputs_after) {{
      keep_goes_on = And (yes, keep_goes)
      kept_capsule = Gather (tree_capsules, k)
      kept_query = Gather (tree_query, k)
      after = reader_edge.{kind}Step (before, kept_capsule)
      kept_output = reader_edge.ReadState (after, kept_query)
      outputs_after = SequenceInsert (outputs_before, kept_output)
    }}> (kept_count, yes, replayed, nothing)

    last_kept = Sub (tree_kept, one)
    first_state = SequenceConstruct (committed)
    states, outputs = Loop <body = grow (int64 n, bool grow_goes, known, outputs_known)
      => (grow_goes_on, more_known, more_outputs) {{
      grow_goes_on = And (yes, grow_goes)
      node = Add (n, tree_kept)
      node_capsule = Gather (tree_capsules, node)
      node_query = Gather (tree_query, node)
      parent = Gather (tree_parents, node)
      distance = Sub (parent, last_kept)
      place = Max (distance, zero)
      hung_on = SequenceAt (known, place)
      reached = reader_edge.{kind}Step (hung_on, node_capsule)
      node_output = reader_edge.ReadState (reached, node_query)
      more_known = SequenceInsert (known, reached)
      more_outputs = SequenceInsert (outputs_known, node_output)
    }}> (other_count, yes, first_state, kept_outputs)
    tree_output = ConcatFromSequence <axis = 0, new_axis = 1> (outputs)
    tree_present = Reshape (committed, state_sizes)
  }}> (batch_count, yes)
}}
"""

# query and key (B, N, Hk, Dk), value (B, N, Hv, Dv), log_decay and beta (B, N, Hv): the gated delta rule.
_TREE_DELTA = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
TreeDelta (query, key, value, log_decay, beta, parents, num_kept, state, pending, num_pending)
  => (output, present, capsules)
{
  row_sizes = Constant <value_ints = [0, 0, -1]> ()
  keys = Reshape (key, row_sizes)
  values = Reshape (value, row_sizes)
  decay = Exp (log_decay)
  capsules = Concat <axis = 2> (keys, values, decay, beta)
  output, present = reader_edge.DeltaWalk (query, capsules, parents, num_kept, state, pending, num_pending)
}
"""

# The same without beta: a value is added as it is. It is the recurrence of Mamba2, and of linear attention that decays.
_TREE_SCAN = """
<domain: "reader_edge", opset_import: ["" : 24, "reader_edge" : 1]>
TreeScan (query, key, value, log_decay, parents, num_kept, state, pending, num_pending)
  => (output, present, capsules)
{
  row_sizes = Constant <value_ints = [0, 0, -1]> ()
  keys = Reshape (key, row_sizes)
  values = Reshape (value, row_sizes)
  decay = Exp (log_decay)
  capsules = Concat <axis = 2> (keys, values, decay)
  output, present = reader_edge.ScanWalk (query, capsules, parents, num_kept, state, pending, num_pending)
}
"""

_DELTA_STEP = _STEP.format(
    kind="Delta", sizes="heads, heads", parts="decays, betas", correction=_CORRECTION, added="correction"
)
_SCAN_STEP = _STEP.format(kind="Scan", sizes="heads", parts="decays", correction="", added="value")

# An operator, and those that it is made of.
TREE_DELTA = _DELTA_STEP, _READ_STATE, _WALK.format(kind="Delta"), _TREE_DELTA
TREE_SCAN = _SCAN_STEP, _READ_STATE, _WALK.format(kind="Scan"), _TREE_SCAN
