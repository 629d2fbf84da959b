//! The routes of the server, with a list of their paths, so that tests miss none.

use std::sync::Arc;

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, get, post, put};

use crate::answer::{self, Refusal};
use crate::server::Shared;
use crate::{api, bundles, captures, ingest, page};

/// Routes that know their paths.
#[derive(Default)]
pub(crate) struct Routes {
    router: Router<Arc<Shared>>,
    paths: Vec<&'static str>,
}

impl Routes {
    /// Adds what answers at a path.
    pub(crate) fn route(mut self, path: &'static str, answers: MethodRouter<Arc<Shared>>) -> Self {
        self.paths.push(path);
        self.router = self.router.route(path, answers);
        self
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

/// Returns the paths of all routes.
#[doc(hidden)]
pub fn paths() -> Paths {
    Paths {
        programs: programs().paths,
        people: page::routes().paths,
    }
}

/// Returns what answers all requests.
pub(crate) fn router(shared: Arc<Shared>) -> Router {
    programs()
        .router
        .merge(page::routes().router)
        .fallback(|| async { Refusal::not_found("page").into_response() })
        .with_state(shared)
        .layer(axum::middleware::map_response(answer::protected))
}

fn programs() -> Routes {
    Routes::default()
        .route("/", post(ingest::falco))
        .route("/api/v1/", post(ingest::falco))
        .route("/api/v1/agents", post(ingest::enrol).get(api::agents))
        .route("/api/v1/inventory", put(ingest::inventory))
        .route("/api/v1/batches", post(ingest::batch))
        .route("/api/v1/groups", get(api::groups))
        .route("/api/v1/groups/{id}/acknowledgement", put(api::acknowledge))
        .route("/api/v1/alerts", get(api::alerts))
        .route("/api/v1/alerts/{id}", get(api::alert))
        .route("/api/v1/overview", get(api::overview))
        .route("/api/v1/bundle", get(bundles::bundle))
        .route("/api/v1/rollouts", get(bundles::rollouts))
        .route(
            "/api/v1/captures",
            get(captures::list).post(captures::request),
        )
        .route("/api/v1/captures/alert", post(captures::announce))
        .route(
            "/api/v1/captures/{id}/chunks/{number}",
            put(captures::chunk),
        )
        .route("/api/v1/captures/{id}/done", put(captures::done))
        .route("/api/v1/captures/{id}/file", get(captures::file))
        .route("/api/v1/openapi.json", get(api::openapi))
        .route("/v1/logs", post(ingest::logs))
        .route("/healthz", get(api::health))
        .route("/readyz", get(api::ready))
        .route("/metrics", get(api::metrics))
}
