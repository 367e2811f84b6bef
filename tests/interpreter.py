"""Triton's interpreter, in which kernels run where there is no GPU, without half of its work, which changes nothing."""

import inspect
from dataclasses import replace


def quicken():
    import triton.language as tl
    from triton.runtime import interpreter

    if not all(hasattr(interpreter, name) for name in ("interpreter_builder", "_patch_lang", "_LangPatchScope")):
        return  # another Triton, with other names: all the work is done

    # Every sum and product of integers is computed once more in 64 bits; but what is found is told in debug mode alone.
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = replace(builder.options, sanitize_overflow=False)

    # A kernel's launch gives the language the interpreter's functions, and takes them back at its end; each function
    # that it calls gives them again.
    patch, given = interpreter._patch_lang, set()

    def once(function):
        modules = frozenset(id(m) for m in function.__globals__.values() if inspect.ismodule(m) and m in (tl, tl.core))
        if modules in given:
            return interpreter._LangPatchScope()
        outermost, scope = not given, patch(function)
        given.add(modules)
        if outermost:
            restore = scope.restore
            scope.restore = lambda: (given.clear(), restore())
        return scope

    interpreter._patch_lang = once
