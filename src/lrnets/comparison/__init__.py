"""The table that compares the methods: same network, data, split, float start, epochs and batch for every row.

The way of the data: settings (mnist.yaml) -> rows of recipes (rows) -> run folders and what is in them (runs) ->
processes that train what is missing (workers) -> figures over seeds (results, costs) -> text, Markdown, JSON (render)
and a picture (picture). Two rows are compared on their per-seed differences (differences). `lrnets table` is
command.make_table.
"""
