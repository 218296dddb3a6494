package ledger

import "testing"

// released is the text of the transition functions under their current version.
const released = "130f9728f3310a9bcb3c4bc52c1ebbda67c831c6c1f0bd6ec1b95d34ec1a5b11"

// TestFunctionsVersion holds the pair (version, digest). A database takes new functions only under a higher
// version, so a change of a .sql file that does not raise it would never arrive there.
func TestFunctionsVersion(t *testing.T) {
	t.Parallel()
	if digest := FunctionsDigest(); FunctionsVersion != 2 || digest != released {
		t.Errorf(`the transition functions are version %d with the digest
	%s
this test knows version 2 with the digest
	%s
What to do after a change of a .sql file in this folder:
  - before the next release: put the new digest into the constant "released" of this test; the version stays 2
  - after it: raise FunctionsVersion in functions.go by one, and put the new version and the new digest into this test`,
			FunctionsVersion, digest, released)
	}
}
