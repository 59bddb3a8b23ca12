"""From a drawn network to the run-time's graph, by way of torch.export."""

from __future__ import annotations

import inspect
import operator
import warnings
from typing import Any, NamedTuple, cast

import torch
from lrnets_runtime.errors import PackedFileError
from lrnets_runtime.graph import Graph, Shape
from lrnets_runtime.shapes import infer_shapes
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from lrnets.errors import describe
from lrnets.export.builder import Builder, Call, Condition, UnsupportedError, Value
from lrnets.export.coding import Tensors
from lrnets.export.operators import KNOWN, REMEDIES
from lrnets.export.sign_operators import CONDITIONS, LOWERINGS
from lrnets.layers import lr_layers
from lrnets.modes import evaluating

RANKS = {1: "(batch, features)", 2: "(batch, channels, length)", 3: "(batch, channels, height, width)"}


class Traced(NamedTuple):
    """A graph and its packed tensors."""

    graph: Graph
    tensors: Tensors


class _Symbol:
    """A number known only with the batch, such as x.shape[0]; shapes are taken from the trace instead."""


@torch.no_grad()
def trace(net: nn.Module, example_input: Tensor) -> Traced:
    """The network in eval mode as a graph for any batch size; scales and biases are float64 until `fold` rounds them.

    `example_input` has a batch first and is one of the inputs (batch, features), (batch, channels, length) and
    (batch, channels, height, width). Weights must be drawn; what they are is recognised from the numbers.
    """
    _check_arguments(net, example_input)
    with evaluating(net):
        return _Tracer(net, _exported(net, example_input)).trace()


def _check_arguments(net: Any, example: Any) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"export takes a torch.nn.Module, got {describe(net)}")
    for name, layer in lr_layers(net):
        raise UnsupportedError(
            f"layer {name!r} ({type(layer).__name__}) has random weights; discretize it first: "
            "net = lrnets.discretize(model)"
        )
    if isinstance(example, (tuple, list)):
        raise UnsupportedError(f"the packed format holds networks of one input, got {len(example)}; give one tensor")
    if not isinstance(example, Tensor) or example.is_complex() or example.dtype == torch.bool:
        raise TypeError(f"the example input must be one tensor of floats, got {describe(example)}")
    if example.dim() - 1 not in RANKS or not example.numel():
        raise UnsupportedError(
            f"an input of shape {tuple(example.shape)} is not supported; use one of {', '.join(RANKS.values())}"
        )
    if not torch.isfinite(example).all():
        raise ValueError("the example input holds numbers that are NaN or infinite; give an ordinary one")
    parameters = list(inspect.signature(net.forward).parameters.values())
    needed = [
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if len(needed) > 1:
        raise UnsupportedError(f"the network takes {len(needed)} inputs ({', '.join(needed)}); one is supported")


def _exported(net: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    """The network's ATen calls without side effects, for any batch size."""
    two = example[:1].repeat(2, *[1] * (example.dim() - 1))  # torch.export takes a batch of 1 for a constant
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.export's about itself
            batch = ({0: torch.export.Dim.DYNAMIC},)
            program = torch.export.export(net, (two,), dynamic_shapes=batch, strict=False)
            return program.run_decompositions({})  # none of them: it only takes in-place operators away
    except Exception as error:  # many kinds, all about the user's network
        first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        hint = " (the network may only work for one batch size)" if "onstraint" in str(error) else ""
        raise UnsupportedError(f"torch.export cannot trace the network: {first}{hint}") from error


class _Tracer:
    """Walks the calls in order; `known` has what each node of the trace stands for."""

    def __init__(self, net: nn.Module, program: torch.export.ExportedProgram) -> None:
        self.net, self.program = net, program
        self.builder = Builder()
        self.known: dict[fx.Node, Any] = {}

    def trace(self) -> Traced:
        signature, nodes = self.program.graph_signature, self.program.graph.nodes
        for changed in signature.buffers_to_mutate.values():
            raise UnsupportedError(f"the network changes its buffer {changed!r} as it runs; leave that to train mode")
        if len(signature.user_outputs) != 1:
            raise UnsupportedError(f"the network has {len(signature.user_outputs)} outputs; one is supported")
        (input_name,) = signature.user_inputs
        constants = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        constants |= signature.inputs_to_lifted_tensor_constants
        stored = {**self.program.constants, **self.program.state_dict}
        for node in nodes:
            if node.op == "placeholder" and node.name == input_name:
                self.batch = node.meta["val"].shape[0]
                source = Value(self.builder.fresh("input"), tuple(node.meta["val"].shape[1:]))
                self.known[node] = source
            elif node.op == "placeholder":
                self.known[node] = stored[constants[node.name]]
            elif node.op == "call_function":
                self.known[node] = self.result(node)
            elif node.op == "get_attr":
                self.known[node] = _Symbol()  # the branches of a condition
        last = next((self.known[node] for node in nodes if node.name == signature.user_outputs[0]), None)
        if not isinstance(last, Value) or last == source:
            raise UnsupportedError("the network's output is its input or does not depend on it; nothing to export")
        graph = Graph(source.name, source.shape, last.name, tuple(self.builder.nodes))
        try:
            shapes = infer_shapes(graph)
        except PackedFileError as error:  # padding wider than a kernel, say
            raise UnsupportedError(f"the packed format does not allow it: {error}") from error
        assert shapes[graph.output] == last.shape
        return Traced(graph, self.builder.tensors)

    def resolve(self, arguments: Any) -> Any:
        return pytree.tree_map(lambda a: self.known[a] if isinstance(a, fx.Node) else a, arguments)

    def result(self, node: fx.Node) -> Any:
        """What a call gives: a value of the graph, or a constant computed here and now."""
        args, kwargs = self.resolve(node.args), self.resolve(node.kwargs)
        if node.target is operator.getitem:
            return args[0][args[1]]
        made = node.meta.get("val")
        if made is None or isinstance(made, (torch.SymInt, torch.SymBool, int, bool)):
            return _Symbol()  # sizes, and assertions about them
        inputs = pytree.tree_leaves((args, kwargs))
        if not any(isinstance(i, (Value, Condition, _Symbol)) for i in inputs) and _is_fixed(node.target):
            return cast(Any, node.target)(*args, **kwargs)  # weights computed from parameters, say
        call = self.call(node, args, kwargs)
        return LOWERINGS[call.operator](self.builder, call)

    def call(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call with its arguments by name, defaults filled in."""
        path, kind = _module_of(node)
        where = f"of module {path!r} ({kind})" if path else f"of the network itself ({kind})"
        name = _operator_of(node)
        made = node.meta["val"][0] if isinstance(node.meta["val"], (tuple, list)) else node.meta["val"]
        blank = Call(name or str(node.target), {}, (), "", where)
        values = [n.meta["val"] for n in node.all_input_nodes if isinstance(self.known[n], Value)]
        whole = {str(value.dtype) for value in values if not value.is_floating_point()}
        if whole:  # token indices, say
            blank.refuse(
                f"of {', '.join(whole)}", "the packed format has floats alone" + self.also_missing(blank.operator)
            )
        if name is None or name not in LOWERINGS:
            blank.refuse(remedy=REMEDIES.get(blank.operator, KNOWN) + self.also_missing(blank.operator))
        schema = cast(Any, node.target)._schema
        given = dict(zip((a.name for a in schema.arguments), args)) | kwargs
        arguments = {a.name: given.get(a.name, a.default_value) for a in schema.arguments}
        shape = self.without_batch(made, blank)
        dtypes = {n.meta["val"].dtype for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)}
        if dtypes - {made.dtype} and name not in CONDITIONS:
            blank.refuse(f"from {', '.join(map(str, dtypes))} to {made.dtype}", "keep one number format throughout")
        return Call(name, arguments, shape, self.layer_name(path, name, node), where)

    def also_missing(self, refused: str) -> str:
        """What to say of other operators on the input's way that are not known, each with its first module."""
        reached: set[fx.Node] = set()
        missing: dict[str, str] = {}
        for node in self.program.graph.nodes:
            if isinstance(self.known.get(node), Value) or not reached.isdisjoint(node.all_input_nodes):
                reached.add(node)
                name = _operator_of(node)
                if name is not None and name not in (refused, *LOWERINGS) and _makes_tensors(node):
                    missing.setdefault(name, _module_of(node)[0])
        listed = ", ".join(f"aten.{name} of {path!r}" for name, path in missing.items())
        return f". Not supported either: {listed}" if listed else ""

    def without_batch(self, made: Tensor, blank: Call) -> Shape:
        first, *others = made.shape or (None,)
        if str(first) != str(self.batch) or not all(isinstance(n, int) for n in others):
            shape = ", ".join("batch" if str(n) == str(self.batch) else str(n) for n in made.shape)
            blank.refuse(f"to shape ({shape})", "the batch must stay the first dimension")
        return tuple(others)

    def layer_name(self, path: str, name: str, node: fx.Node) -> str:
        """The module's own name if it is a layer, else that of its parameters, else the operator's in the module."""
        module = dict(self.net.named_modules(remove_duplicate=False)).get(path)
        if path and module is not None and not list(module.children()):
            return path
        targets = self.program.graph_signature.inputs_to_parameters
        owned = [targets[n.name] for n in node.all_input_nodes if n.name in targets]
        if owned and "." in owned[0]:
            return owned[0].rpartition(".")[0]
        return f"{path}.{name}" if path else name


def _operator_of(node: fx.Node) -> str | None:
    """Name of the operator that a node calls, without torch's own name before it."""
    schema = getattr(node.target, "_schema", None)
    return None if schema is None else schema.name.removeprefix("aten::")


def _makes_tensors(node: fx.Node) -> bool:
    return any(isinstance(made, Tensor) for made in pytree.tree_leaves(node.meta.get("val")))


def _module_of(node: fx.Node) -> tuple[str, str]:
    """Path and class of the innermost module that a call was made in."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    path, kind = stack[-1] if stack else ("", "?")
    kind = kind if isinstance(kind, str) else kind.__qualname__
    return path.partition("@")[0], kind.rpartition(".")[2]


def _is_fixed(target: Any) -> bool:
    """Whether an operator gives the same again: not if it draws random numbers."""
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in target.tags
