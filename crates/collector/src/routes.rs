//! Routes with a list of their paths, so that tests miss none.

use axum::Router;
use axum::routing::MethodRouter;

/// Routes that know their paths.
pub(crate) struct Routes<S> {
    router: Router<S>,
    paths: Vec<&'static str>,
}

impl<S: Clone + Send + Sync + 'static> Routes<S> {
    /// Returns no routes.
    pub(crate) fn new() -> Self {
        Self {
            router: Router::new(),
            paths: Vec::new(),
        }
    }

    /// Adds what answers at a path.
    pub(crate) fn route(mut self, path: &'static str, answers: MethodRouter<S>) -> Self {
        self.paths.push(path);
        self.router = self.router.route(path, answers);
        self
    }

    /// Returns the paths.
    pub(crate) fn into_paths(self) -> Vec<&'static str> {
        self.paths
    }

    /// Returns what answers.
    pub(crate) fn into_router(self) -> Router<S> {
        self.router
    }
}

/// Paths of all routes, as the router has them: `{id}` stands for a part of a path. For tests.
#[doc(hidden)]
#[derive(Debug)]
pub struct Paths {
    /// Those of the interface for programs.
    pub programs: Vec<&'static str>,
    /// Those of the page. `/` is in both.
    pub people: Vec<&'static str>,
}
