#!/bin/bash
# Azure SDK for Go, azblob 1.8.0 with azcore 1.23.1: the time for which a request is signed with a shared key cannot be
# set with Header.Set.
#
# The policy that signs takes x-ms-date from the request if it is there, and the current time otherwise. It looks the
# header up by the key "x-ms-date", not by the canonical form, "X-Ms-Date", under which Header.Set stores it. It does
# not find it, and replaces it: a policy that corrects the time for a wrong clock has no effect, and no error says so.
# With Header["x-ms-date"] the time is kept.
#
# Seen with Go 1.26.8 on Linux amd64, 2026-11-30. The script needs Go. It fails if the behaviour changes.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >main.go <<'END_GO'
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
)

const date = "Fri, 01 May 2020 12:00:00 GMT"

// setDate is a policy that sets the time of a request.
type setDate func(http.Header)

func (set setDate) Do(r *policy.Request) (*http.Response, error) {
	set(r.Raw().Header)
	return r.Next()
}

// sender is a transport that keeps the time of the last request.
type sender struct{ sent string }

func (s *sender) Do(r *http.Request) (*http.Response, error) {
	for name, values := range r.Header {
		if strings.EqualFold(name, "x-ms-date") {
			s.sent = values[0]
		}
	}
	body := `<EnumerationResults><Blobs /><NextMarker /></EnumerationResults>`
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/xml"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

func main() {
	key, err := blob.NewSharedKeyCredential("account", "c2VjcmV0")
	if err != nil {
		panic(err)
	}
	for name, set := range map[string]func(http.Header){
		"Header.Set":          func(h http.Header) { h.Set("x-ms-date", date) },
		`Header["x-ms-date"]`: func(h http.Header) { h["x-ms-date"] = []string{date} },
	} {
		s := new(sender)
		c, err := container.NewClientWithSharedKeyCredential("https://account.example.org/c", key, &container.ClientOptions{
			ClientOptions: azcore.ClientOptions{Transport: s, PerCallPolicies: []policy.Policy{setDate(set)}},
		})
		if err != nil {
			panic(err)
		}
		if _, err := c.NewListBlobsFlatPager(nil).NextPage(context.Background()); err != nil {
			panic(err)
		}
		fmt.Printf("%s: kept %t\n", name, s.sent == date)
	}
}
END_GO
go mod init m 2>/dev/null
go get github.com/Azure/azure-sdk-for-go/sdk/storage/azblob@v1.8.0 github.com/Azure/azure-sdk-for-go/sdk/azcore@v1.23.1 2>/dev/null
go mod tidy 2>/dev/null
go run . | tee out
grep -qx 'Header.Set: kept false' out
grep -qx 'Header\["x-ms-date"\]: kept true' out
