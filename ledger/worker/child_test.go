package worker_test

const childEnv = "JOBLEDGER_WORKER_TEST_CHILD"

func childMain(string) int { return 1 }
