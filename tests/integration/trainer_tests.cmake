# The trainer as a program: attempt directories as a worker lays them out, and runs by hand.
if(SWITCHYARD_TORCH)
  switchyard_cc_test(NAME integration_trainer_test LABELS "integration;torch"
    SRCS trainer_test.cc
    DEPS switchyard_events switchyard_spec switchyard_proto switchyard_base)
  add_dependencies(integration_trainer_test switchyard-trainer)
endif()
# The trainer's loop in forked processes that are ended at named points: resuming, leaks, real text.
switchyard_cc_test(NAME integration_training_test LABELS "integration;torch" TORCH
  SRCS forked_training.cc leak_detector_test.cc real_text_test.cc resume_matrix_test.cc
  DEPS switchyard_resume_comparison switchyard_train switchyard_model switchyard_data
       switchyard_events switchyard_spec switchyard_proto switchyard_base)
