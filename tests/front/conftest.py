"""TensorFlow's graph optimizer is off where tests are about what is called and when, and not about what is computed."""

from tests.support.graph_optimizer import off_where

WITHOUT_OPTIMIZER = {
    "test_another_optimizer", "test_bad_data", "test_bad_input", "test_batch_kinds", "test_between_calls",
    "test_data_forms", "test_evaluate_predict", "test_fit_again",
"test_keras_builds", "test_keras_callbacks", "test_keras_loops", "test_keras_models",
    "test_left_as_it_was", "test_let_go", "test_log", "test_made_of_gradients", "test_metrics",
    "test_one_call", "test_others", "test_plain_variables",
    "test_plan_is_placed", "test_refused", "test_results", "test_resume", "test_saving", "test_settings",
    "test_state", "test_tensorboard_plan", "test_traced_once", "test_trackers", "test_verify", "test_verify_forms",
    "test_wrapper",
}  # fmt: skip

without_graph_optimizer = off_where(WITHOUT_OPTIMIZER.__contains__)
