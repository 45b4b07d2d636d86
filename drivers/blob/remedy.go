package blob

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
)

// This file says what to do about a store that refuses a request.

// Remedy returns what to do about an error of this package, "" if the errno says it all.
func Remedy(err error) string {
	if e, ok := errors.AsType[*storeError](err); ok {
		return e.remedy
	}
	return ""
}

// explain adds to an error that matches EACCES how the request was signed, and the remedy.
func (b *Bucket) explain(ctx context.Context, e *storeError) *storeError {
	if e.errno != syscall.EACCES || e.remedy != "" {
		return e
	}
	explained := *e
	signing := ""
	if e.status != 0 && !e.archived { // without a response, there was nothing to sign it with
		signing = b.signing(ctx)
	}
	if signing != "" {
		explained.text += "; " + signing
	}
	explained.remedy = b.remedy(e)
	return &explained
}

// signingTimeout bounds a lookup of credentials for a message.
const signingTimeout = time.Second

// signing describes how requests are signed, "" if that is not known.
func (b *Bucket) signing(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, signingTimeout)
	defer cancel()
	identity, err := b.vendor.identity(ctx)
	switch {
	case err != nil || identity == "":
		return ""
	case b.location.Anonymous:
		return "the request was not signed"
	}
	return "signed with " + identity
}

// skewCodes are the error codes that a wrong clock can cause.
var skewCodes = []string{codeSkewed, "SignatureDoesNotMatch", "RequestExpired", "ExpiredToken", "AuthenticationFailed", "InvalidAuthenticationInfo", "invalid_grant"}

// remedy returns what to do about a request that was refused.
func (b *Bucket) remedy(e *storeError) string {
	l := b.location
	switch {
	case e.archived:
		return remedyOfArchived[l.Scheme] + " Then run `milkweed refresh` on it, or on its directory; otherwise it is requested again after 5 minutes."
	case slices.Contains(skewCodes, e.code) && e.skew.Abs() > maxSkew:
		return fmt.Sprintf("Set the clock of this machine: it is %s that of the store.", behind(e.skew))
	case e.code == codeSkewed:
		return "Compare the clock of this machine with that of the store."
	case e.code == codeRequesterPays && l.Scheme == "s3":
		return "The requester pays for this bucket of Google: mount it as gs://, with the option billing_project= and the project to which requests are charged."
	case e.code == codeRequesterPays && l.Anonymous:
		return "The requester pays for this bucket: supply credentials, and give the URL the option billing_project= in place of anonymous=true, with the project to which requests are charged."
	case e.code == codeRequesterPays:
		return "The requester pays for this bucket: give the URL the option billing_project=, with the project to which requests are charged."
	case l.Anonymous:
		return "The bucket or this object is not public: remove anonymous=true from the URL, and supply credentials."
	case e.status == 0 && l.Scheme == "s3":
		return missingProfile(profileOf(l.Profile, ""))
	case e.status == 0:
		return "" // there are no credentials
	}
	switch e.code {
	case "InvalidAccessKeyId", "XAdminUserNotFound":
		return "The store has no such access key. Check whether it was deleted, or is for another store."
	case "SignatureDoesNotMatch":
		return "The secret key is not the one of the access key. Check it for a missing or an added character; a proxy that changes requests has the same effect."
	case "ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidToken":
		return "Renew the session token where it comes from, for example with `aws sso login`. A mount finds it there within 30 s, but not in the environment of its daemon: mount again for that."
	case "AuthenticationFailed", "InvalidAuthenticationInfo", "NoAuthenticationInformation":
		return "Check whether the key is one of this account, and whether the shared access signature or the token is valid now."
	case "AuthorizationFailure": // of Azure for its network rules, and of Azurite for a wrong key
		return "Check whether the key is one of this account, and whether the network rules of the account admit this machine. The credentials need the " + rights[l.Scheme] + "."
	case "KeyBasedAuthenticationNotPermitted":
		return "The account forbids keys. Unset AZURE_STORAGE_KEY and AZURE_STORAGE_CONNECTION_STRING, and log in with `az login`."
	}
	if e.refresh {
		return "Renew the credentials where they come from. A mount finds them there within 30 s."
	}
	text := "The store knows the credentials; they need the " + rights[l.Scheme] + ". For a public bucket, add anonymous=true to the URL"
	if l.Scheme == "s3" && !l.RequesterPays {
		text += "; if the requester pays for the bucket, requester_pays=true"
	}
	return text + "."
}

var remedyOfArchived = map[string]string{
	"s3":     "Restore the object, for example with `aws s3api restore-object`.",
	"azblob": "Set the tier of the blob to Hot or Cool, for example with `az storage blob set-tier`.",
}

// rights are the permissions that a mount needs, by scheme.
var rights = map[string]string{
	"s3":     "permissions s3:ListBucket for the bucket and s3:GetObject for its objects, and kms:Decrypt if they are encrypted with a key of KMS",
	"gs":     "permissions storage.objects.list and storage.objects.get, as in the role roles/storage.objectViewer",
	"azblob": "role Storage Blob Data Reader, or a shared access signature with the permissions r and l",
}

// profileOf returns the profile of the shared configuration of Amazon that is in effect.
func profileOf(inURL, fallback string) string {
	return cmp.Or(inURL, os.Getenv("AWS_PROFILE"), os.Getenv("AWS_DEFAULT_PROFILE"), fallback)
}

// missingProfile returns the remedy for a profile of the shared configuration of Amazon that does not
// exist, "" if it does.
func missingProfile(profile string) string {
	configs, credentials := config.DefaultSharedConfigFiles, config.DefaultSharedCredentialsFiles
	if file := os.Getenv("AWS_CONFIG_FILE"); file != "" {
		configs = []string{file}
	}
	if file := os.Getenv("AWS_SHARED_CREDENTIALS_FILE"); file != "" {
		credentials = []string{file}
	}
	if profile == "" {
		return ""
	}
	_, err := config.LoadSharedConfigProfile(context.Background(), profile, func(o *config.LoadSharedConfigOptions) {
		o.ConfigFiles, o.CredentialsFiles = configs, credentials
	})
	files := strings.Join(slices.Concat(configs, credentials), " or ")
	if _, ok := errors.AsType[config.SharedConfigProfileNotExistError](err); ok {
		return fmt.Sprintf("There is no profile %q in %s. Correct profile= in the URL or AWS_PROFILE, or name other files with AWS_CONFIG_FILE and AWS_SHARED_CREDENTIALS_FILE.", profile, files)
	}
	return fmt.Sprintf("The profile %q in %s gives no credentials: see whether `aws sts get-caller-identity --profile %s` works.", profile, files, profile)
}
