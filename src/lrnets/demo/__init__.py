"""A page that shows a network at work: its C code as WebAssembly, a place to draw, and what the first layer sees."""

from lrnets.demo.command import DemoReport, make_demo

__all__ = ["DemoReport", "make_demo"]
