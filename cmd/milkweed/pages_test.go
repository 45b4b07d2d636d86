package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/milkweedfs/milkweed/cmd/internal/docrun"
)

// The pages of the tutorial and of the how-to guides are run: TestPages runs each in a sandbox, as
// package docrun describes.

// pages has the setup of each page, by its path in docs. A page that is not in the table is not
// run, which is an error.
var pages = map[string]func(t *testing.T) []docrun.Sandbox{
	"tutorial.md": tutorialPage,
}

// aptStub is an apt that installs nothing. It fails if a package is neither a file nor installed.
const aptStub = `#!/bin/sh
[ "$(id -u)" -eq 0 ] || { echo "apt: are you root?" >&2; exit 100; }
command=$1
shift
[ "$command" = install ] || [ "$command" = remove ] || exit 100
for word; do
	case $word in
	-*) ;;
	./*) [ -f "$word" ] || { echo "apt: no file $word" >&2; exit 100; } ;;
	milkweed) [ "$command" = remove ] || exit 100 ;;
	*) dpkg-query --show --showformat '${Package} is installed\n' "$word" >&2 ;;
	esac
done
`

// tutorialPage is the setup of the tutorial, for an ordinary user and for root.
func tutorialPage(t *testing.T) []docrun.Sandbox {
	need(t, "python3-torch", "python3-torchvision", "python3-sklearn")
	s := docrun.Sandbox{
		Stubs: map[string]string{"apt": aptStub},
		Setup: `for home in /root /home/ada; do : >$home/milkweed_0_amd64.deb; done`,
	}
	user := s
	user.User = true
	return []docrun.Sandbox{user, s}
}

func TestPages(t *testing.T) {
	need(t, "root", "/dev/fuse", "unshare", "setpriv", "fusermount3")
	milkweed, err := program()
	if err != nil {
		t.Fatal(err)
	}
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for path, setup := range pages {
		t.Run(path, func(t *testing.T) {
			page := readPage(t, "docs/"+path)
			for _, s := range setup(t) {
				s.Program, s.Repo = milkweed, repo
				ctx, cancel := context.WithTimeout(t.Context(), 2*commandTimeout)
				defer cancel()
				output, err := s.Run(ctx, page)
				if err != nil {
					t.Errorf("as an ordinary user: %v: %v", s.User, err)
				}
				if testing.Verbose() {
					t.Log(output)
				}
			}
		})
	}
}

// readPage parses a page of the repository.
func readPage(t *testing.T, path string) *docrun.Page {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	page, err := docrun.Parse(path, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return page
}
