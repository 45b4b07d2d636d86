package blob

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/blob/blobtest"
)

// The errors of servers for wrong credentials have the credentials and a remedy.
func TestWrongCredentials(t *testing.T) {
	if testing.Short() {
		t.Skip("starts the servers of three vendors")
	}
	blobtest.Each(t, func(t *testing.T, server *blobtest.Server) {
		server.Setenv(t)
		server.MakeBucket(t, "wrong")
		server.Put(t, "wrong", "object", random(1000, 1))
		open := func(name, value, signing, remedy string) {
			t.Helper()
			t.Setenv(name, value)
			l, err := Parse(server.BucketURL("wrong", "", server.URL))
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), l, nil)
			if !errors.Is(err, syscall.EACCES) || !strings.Contains(err.Error(), signing) || !strings.Contains(Remedy(err), remedy) || strings.Contains(err.Error(), value) != (name == "AWS_ACCESS_KEY_ID") {
				t.Errorf("%s: got error %v, remedy %q; want %q and %q", name, err, Remedy(err), signing, remedy)
			}
		}
		switch server.Kind {
		case blobtest.S3:
			open("AWS_SECRET_ACCESS_KEY", "geheim-und-falsch", "SignatureDoesNotMatch", "secret key is not the one")
			open("AWS_ACCESS_KEY_ID", "AKIANOBODY", "signed with access key AKIANOBODY, from the environment (AWS_ACCESS_KEY_ID)", "no such access key")
		case blobtest.Azure:
			open("AZURE_STORAGE_KEY", "Z2VoZWltLXVuZC1mYWxzY2g=", "signed with shared key of account devstoreaccount1", "key is one of this account")
		}
	})
}

// The remedy follows from the error code, the clock of the store and the scheme.
func TestRemedies(t *testing.T) {
	for _, c := range []struct {
		scheme    string
		anonymous bool
		err       storeError
		want      string
	}{
		{"s3", false, storeError{code: "ExpiredToken", status: 400, refresh: true}, "Renew the session token"},
		{"s3", false, storeError{code: "RequestTimeTooSkewed", status: 403, refresh: true, skew: -20 * time.Minute}, "it is 20m0s ahead of that of the store"},
		{"s3", false, storeError{code: "RequestTimeTooSkewed", status: 403, refresh: true}, "Compare the clock"},
		{"s3", false, storeError{code: "SignatureDoesNotMatch", status: 403, refresh: true, skew: time.Hour}, "it is 1h0m0s behind that of the store"},
		{"s3", false, storeError{code: "AccessDenied", status: 403, skew: time.Hour}, "s3:GetObject"},
		{"s3", true, storeError{code: "AccessDenied", status: 403}, "remove anonymous=true"},
		{"s3", false, storeError{code: "InvalidObjectState", status: 403, archived: true}, "restore-object"},
		{"gs", false, storeError{code: "authError", status: 401, refresh: true}, "Renew the credentials"},
		{"gs", false, storeError{code: "forbidden", status: 403}, "roles/storage.objectViewer"},
		{"gs", true, storeError{code: "required", status: 401}, "remove anonymous=true"},
		{"azblob", false, storeError{code: "AuthenticationFailed", status: 403, refresh: true}, "shared access signature or the token is valid now"},
		{"azblob", false, storeError{code: "AuthenticationFailed", status: 403, refresh: true, skew: time.Hour}, "Set the clock of this machine"},
		{"azblob", false, storeError{code: "AuthorizationPermissionMismatch", status: 403}, "Storage Blob Data Reader"},
		{"azblob", false, storeError{code: "KeyBasedAuthenticationNotPermitted", status: 403}, "az login"},
		{"azblob", false, storeError{code: "BlobArchived", status: 409, archived: true}, "set-tier"},
	} {
		b := &Bucket{location: Location{Scheme: c.scheme, Anonymous: c.anonymous}}
		if got := b.remedy(&c.err); !strings.Contains(got, c.want) {
			t.Errorf("%s, %s: got %q, want %q", c.scheme, c.err.code, got, c.want)
		}
	}
}
