# The trainer as a program: attempt directories as a worker lays them out, and runs by hand.
if(SWITCHYARD_TORCH)
  switchyard_cc_test(NAME integration_trainer_test LABELS "integration;torch"
    SRCS trainer_test.cc
    DEPS switchyard_events switchyard_spec switchyard_proto switchyard_base)
  add_dependencies(integration_trainer_test switchyard-trainer)
endif()
