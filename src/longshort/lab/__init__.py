"""The laboratory: trains, evaluates, measures and draws. It imports the library, never the reverse."""
