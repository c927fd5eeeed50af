"""The checks of `allm models test`: what a model that serves well does, seen as any client sees it."""
